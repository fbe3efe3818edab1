//go:build unix

package main

import (
	"io"
	"net"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestEnvironReplacesTheVariablesOfAnotherBroker(t *testing.T) {
	b := broker{Variables: map[string]string{"AMQP_URL": "amqp://here", "AMQP_MANAGEMENT_URL": "http://here"}}
	got := b.environ([]string{"PATH=/bin", "AMQP_URL=amqp://there", "AMQP_PROMETHEUS_URL=http://there",
		"BROKER_CTL=ctl there", "BROKER_KILL=kill there", "BROKER_START=start there"})
	want := []string{"PATH=/bin", "AMQP_URL=amqp://here", "AMQP_MANAGEMENT_URL=http://here"}
	if !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func TestNamedBrokerErrorsContainNoPassword(t *testing.T) {
	for _, uri := range []string{
		"amqp://user:geheim@127.0.0.1:1/", "amqp://user:geheim@127.0.0.1:x/", "http://user:geheim@127.0.0.1:1/",
	} {
		t.Setenv("AMQP_URL", uri)
		if _, err := named(t.Context()); err == nil || strings.Contains(err.Error(), "geheim") {
			t.Errorf("got %v", err)
		}
	}
}

func TestHandshake(t *testing.T) {
	for _, test := range []struct {
		name, answer string
		valid        bool
	}{
		{"connection.start", "\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x0a", true},
		{"another protocol version", "AMQP\x00\x00\x09\x01", false},
		{"HTTP", "HTTP/1.1 400 Bad Request\r\n\r\n", false},
		{"nothing", "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			go func() {
				connection, err := listener.Accept()
				if err != nil {
					return
				}
				defer connection.Close()
				_, _ = io.ReadFull(connection, make([]byte, 8))
				_, _ = io.WriteString(connection, test.answer)
			}()
			err = handshake(t.Context(), &url.URL{Scheme: "amqp", Host: listener.Addr().String()})
			if (err == nil) != test.valid {
				t.Fatalf("got %v, want valid: %v", err, test.valid)
			}
		})
	}
}

func TestQuoteMakesOneWord(t *testing.T) {
	for _, text := range []string{"", "plain", "two words", "it's $HOME `pwd`", `\ "`} {
		got, err := exec.Command("sh", "-c", "printf %s "+quote(text)).Output()
		if err != nil || string(got) != text {
			t.Errorf("%q became %q, %v", text, got, err)
		}
	}
}

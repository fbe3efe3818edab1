//go:build unix

package main

import (
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

// TestNamedBrokerErrorsContainNoPassword: nor is another broker taken in its place.
func TestNamedBrokerErrorsContainNoPassword(t *testing.T) {
	for _, uri := range []string{
		"amqp://user:geheim@127.0.0.1:1/", "amqp://user:geheim@127.0.0.1:x/", "http://user:geheim@127.0.0.1:1/",
	} {
		t.Setenv("AMQP_URL", uri)
		if _, err := find(t.Context()); err == nil || strings.Contains(err.Error(), "geheim") {
			t.Errorf("got %v", err)
		}
	}
}

//go:build unix

package main

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// closed returns a way that is not open. opened returns a way that is open; the URL of its broker is its name.
func closed(name string) way {
	return way{name: name, open: func(context.Context) string { return "not here" }}
}

func opened(name string) way {
	return way{
		name: name,
		open: func(context.Context) string { return "" },
		take: func(context.Context) (broker, error) {
			return broker{Variables: map[string]string{"AMQP_URL": name}}, nil
		},
	}
}

func TestFindTakesTheFirstOpenWay(t *testing.T) {
	notTried := way{name: "later", open: func(context.Context) string {
		t.Error("find tried a way after the open one")
		return ""
	}}
	for _, test := range []struct {
		name string
		ways []way
		want string
	}{
		{"the first", []way{opened("a"), notTried}, "a"},
		{"the second", []way{closed("a"), opened("b"), notTried}, "b"},
		{"the last", []way{closed("a"), closed("b"), opened("c")}, "c"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b, err := find(t.Context(), test.ways)
			if err != nil || b.Variables["AMQP_URL"] != test.want {
				t.Fatalf("found %q, %v; want %q", b.Variables["AMQP_URL"], err, test.want)
			}
		})
	}
}

func TestFindErrorNamesAllWays(t *testing.T) {
	_, err := find(t.Context(), []way{closed("a"), closed("b")})
	for _, part := range []string{"a: not here", "b: not here", "AMQP_URL"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v: the error does not contain %q", err, part)
		}
	}
}

func TestFindDoesNotHideABrokerThatDoesNotStart(t *testing.T) {
	fault := errors.New("broken")
	fails := way{
		name: "a",
		open: func(context.Context) string { return "" },
		take: func(context.Context) (broker, error) { return broker{}, fault },
	}
	if _, err := find(t.Context(), []way{fails, opened("b")}); !errors.Is(err, fault) {
		t.Fatalf("got %v, want the fault of the first way", err)
	}
}

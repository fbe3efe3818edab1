//go:build unix

package main

import (
	"context"
	"errors"
	"testing"
)

func opened(name string) way {
	return way{
		name: name,
		open: func(context.Context) string { return "" },
		take: func(context.Context) (broker, error) {
			return broker{Variables: map[string]string{"AMQP_URL": name}}, nil
		},
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

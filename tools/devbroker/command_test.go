//go:build unix

package main

import (
	"context"
	"testing"
)

func TestCommandExitStatus(t *testing.T) {
	for _, test := range []struct {
		name, script string
		want         int
	}{
		{"success", "exit 0", 0},
		{"its own", "exit 7", 7},
		{"a signal", "kill -TERM $$", 128 + 15},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := command(t.Context(), []string{"PATH=/usr/bin:/bin"}, []string{"sh", "-c", test.script})
			if got != test.want || err != nil {
				t.Fatalf("got %d, %v; want %d", got, err, test.want)
			}
		})
	}
	if got, err := command(t.Context(), nil, []string{"/no/such/command"}); got != 127 || err == nil {
		t.Errorf("a missing command: got %d, %v", got, err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if got, err := command(ended, nil, []string{"true"}); got == 0 || err == nil {
		t.Errorf("a signal while the broker started: got %d, %v", got, err)
	}
}

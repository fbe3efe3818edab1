//go:build unix

package main

import "testing"

func TestFreePortsAreDistinct(t *testing.T) {
	t.Parallel()
	ports, err := freePorts()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, port := range []int{ports.amqp, ports.management, ports.prometheus, ports.distribution, ports.epmd} {
		if seen[port] || port < firstPort || port >= lastPort {
			t.Errorf("%+v: port %d", ports, port)
		}
		seen[port] = true
	}
}

//go:build unix

package main

import "testing"

func TestFreePortsAreDistinct(t *testing.T) {
	ports, err := freePorts()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, port := range []int{ports.AMQP, ports.Management, ports.Prometheus, ports.Distribution, ports.Epmd} {
		if seen[port] || port < firstPort || port >= lastPort {
			t.Errorf("%+v: port %d", ports, port)
		}
		seen[port] = true
	}
}

//go:build unix

package main

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

type portSet struct{ AMQP, Management, Prometheus, Distribution, Epmd int }

// These ports are below the range from which Linux and macOS take the ports of outgoing connections.
const firstPort, lastPort = 26000, 32700

// freePorts listens on each port until all five are found: no port is returned twice.
func freePorts() (portSet, error) {
	var ports []int
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		defer listener.Close()
		if ports = append(ports, port); len(ports) == 5 {
			return portSet{ports[0], ports[1], ports[2], ports[3], ports[4]}, nil
		}
	}
	return portSet{}, errors.New("no free ports on 127.0.0.1")
}

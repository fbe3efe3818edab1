//go:build unix

package main

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

type portSet struct{ amqp, management, distribution, epmd int }

// Below the range from which Linux and macOS take the ports of outgoing connections, which come and go meanwhile.
const firstPort, lastPort = 26000, 32700

// freePorts holds all four until all are found, so that none is given twice.
func freePorts() (portSet, error) {
	var ports []int
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		defer listener.Close()
		if ports = append(ports, port); len(ports) == 4 {
			return portSet{ports[0], ports[1], ports[2], ports[3]}, nil
		}
	}
	return portSet{}, errors.New("no free ports on 127.0.0.1")
}

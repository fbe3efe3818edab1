//go:build unix

package main

import (
	"io"
	"net"
	"strconv"
	"time"
)

// killEpmd ends the port mapper that the node started as a daemon, by a request of epmd's protocol (KILL_REQ). epmd
// refuses while a node is registered, and removes a dead node a moment after its death: killEpmd tries several times.
func killEpmd(port int) {
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	for range 40 {
		connection, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			return
		}
		_ = connection.SetDeadline(time.Now().Add(time.Second))
		_, _ = connection.Write([]byte{0, 1, 'k'})
		answer, _ := io.ReadAll(connection)
		_ = connection.Close()
		if string(answer) == "OK" {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	say("epmd on port %d did not end", port)
}

//go:build unix

package main

import (
	"io"
	"net"
	"strconv"
	"time"
)

// killEpmd ends the port mapper that the node started as a daemon, in epmd's own protocol (KILL_REQ). It refuses while
// it knows a live node, and learns of a dead one a moment late.
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

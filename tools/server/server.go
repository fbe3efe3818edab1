// Package server finds, installs and starts private servers for the tests and the examples. A server listens on a
// free port of 127.0.0.1. It has its data in a temporary folder, which Stop removes. On Linux the kernel ends the
// server when this process dies. It is a tool of this repository and not part of the library's API: it can change in
// any version.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// StartDeadline leaves time for a machine that also compiles on its two cores.
const StartDeadline = 2 * time.Minute

// Server is a server that was started.
type Server struct {
	URL  string // its address, in the form that the backend's client needs
	Stop func() // stops the server and removes its data; a second call has no effect
}

// Try starts a server on a free port. Another process can take the port before the server listens: Try starts it up
// to three times.
func Try(ctx context.Context, start func(port int) (*Server, error)) (*Server, error) {
	var faults []error
	for range 3 {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		server, err := start(port)
		if err == nil {
			return server, nil
		}
		faults = append(faults, err)
	}
	return nil, errors.Join(faults...)
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("no free port on 127.0.0.1: %w", err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// Await waits until the server answers. It fails when the server's process ends, and after StartDeadline.
func Await(ctx context.Context, ended <-chan struct{}, answers func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, StartDeadline)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	last := errors.New("no connection was tried")
	for {
		select {
		case <-ended:
			return errors.New("its process ended")
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), last)
		case <-tick.C:
			if last = answers(ctx); last == nil {
				return nil
			}
		}
	}
}

// Folder makes a temporary folder for the data of a server.
func Folder(name string) (string, error) { return os.MkdirTemp("", "watermill-retry-"+name+"-") }

package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// startDeadline is generous: two cores that also compile need their time.
const startDeadline = time.Minute

// Server is a server that was started.
type Server struct {
	URL  string // what a client of the backend takes as address
	Stop func() // stops it and removes its data; once
}

// try starts a server on a port that was free a moment ago, and again on others where it is taken meanwhile.
func try(ctx context.Context, start func(port int) (*Server, error)) (*Server, error) {
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

// await asks until the server answers, or its process has ended, or the deadline is over.
func await(ctx context.Context, ended <-chan struct{}, answers func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	last := errors.New("it was not asked yet")
	for {
		select {
		case <-ended:
			return errors.New("it ended by itself")
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), last)
		case <-tick.C:
			if last = answers(ctx); last == nil {
				return nil
			}
		}
	}
}

func folder(name string) (string, error) { return os.MkdirTemp("", "watermill-retry-"+name+"-") }

package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// startDeadline leaves time for a machine that also compiles on its two cores.
const startDeadline = time.Minute

// Server is a server that was started.
type Server struct {
	URL  string // its address, in the form that the backend's client needs
	Stop func() // stops the server and removes its data; a second call has no effect
}

// try starts a server on a free port. Another process can take the port before the server listens: try starts it up to three times.
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

// await waits until the server answers. It fails when the server's process ends, and after startDeadline.
func await(ctx context.Context, ended <-chan struct{}, answers func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
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

func folder(name string) (string, error) { return os.MkdirTemp("", "watermill-retry-"+name+"-") }

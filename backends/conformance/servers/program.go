//go:build unix

package servers

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/tieredretry/watermill-retry/tools/server"
)

// program is a server in a process of its own.
type program struct {
	name       string // of the product
	url        string
	folder     string // its data
	credential *syscall.Credential
	ending     syscall.Signal
	command    []string
	answers    func(context.Context) error

	mu      sync.Mutex
	process *server.Process
	stopped bool
}

// launch starts a server on a free port.
func launch(ctx context.Context, describe func(port int) (*program, error)) (*Server, error) {
	var p *program
	started, err := server.Try(ctx, func(port int) (_ *server.Server, err error) {
		if p, err = describe(port); err != nil {
			return nil, err
		}
		if err := p.start(ctx); err != nil {
			_ = os.RemoveAll(p.folder)
			return nil, err
		}
		return &server.Server{URL: p.url, Stop: p.stop}, nil
	})
	if err != nil {
		return nil, err
	}
	return &Server{URL: started.URL, Stop: started.Stop, Kill: p.kill, Restart: p.restart}, nil
}

// start starts the process, and returns when it answers.
func (p *program) start(ctx context.Context) error {
	err := p.run(ctx)
	if err != nil && p.process != nil {
		return p.process.Explain(p.name, err)
	}
	return err
}

func (p *program) run(ctx context.Context) error {
	process, err := server.Run(p.folder, p.credential, p.ending, p.command[0], p.command[1:]...)
	if err != nil {
		return fmt.Errorf("cannot start %s: %w", p.command[0], err)
	}
	p.process = process
	return server.Await(ctx, p.process.Ended, p.answers)
}

func (p *program) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.process.Kill()
}

// restart tries for a while: PostgreSQL does not start before the last of its old processes has ended, which are in
// process groups of their own.
func (p *program) restart(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return fmt.Errorf("the private %s is stopped", p.name)
	}
	p.process.Kill()
	for deadline := time.Now().Add(server.StartDeadline); ; time.Sleep(100 * time.Millisecond) {
		err := p.run(ctx)
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
	}
}

func (p *program) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	p.process.Stop()
}

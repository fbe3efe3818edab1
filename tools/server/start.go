//go:build unix

package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// startDeadline leaves time for a machine that also compiles on its two cores.
const startDeadline = 2 * time.Minute

// A Plan is how a server is started.
type Plan struct {
	Name   string              // the name of the product
	User   *syscall.Credential // whose process it is; nil: that of this process
	Ending syscall.Signal      // ends the server, with its child processes, at once

	// Command prepares the folder, and returns the address and the command of a server that listens on the port.
	Command func(folder string, port int) (url string, command []string, err error)
	// Answers returns nil when the server at the address is ready.
	Answers func(ctx context.Context, url string) error
}

// Start starts a server on a free port. Another process can take the port before the server listens: Start tries it up
// to three times.
func Start(ctx context.Context, plan Plan) (*Server, error) {
	var faults []error
	for range 3 {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		p := &process{Plan: plan}
		err := p.open(ctx)
		if err == nil {
			return &Server{URL: p.url, Stop: p.stop, Kill: p.kill, Pause: p.pause, Restart: p.restart}, nil
		}
		faults = append(faults, p.explain(err))
	}
	return nil, errors.Join(faults...)
}

// process is a server's process. It is in a process group of its own: Ctrl-C reaches only this process, which then
// stops the server.
type process struct {
	Plan
	url, folder string
	command     []string

	mu      sync.Mutex
	started *exec.Cmd
	ended   chan struct{} // closed when the process has ended
	stopped bool
}

func (p *process) open(ctx context.Context) (err error) {
	if p.folder, err = os.MkdirTemp("", "watermill-retry-"); err != nil {
		return err
	}
	if p.User != nil {
		if err := os.Chown(p.folder, int(p.User.Uid), int(p.User.Gid)); err != nil {
			return err
		}
	}
	ports, err := FreePorts(1)
	if err != nil {
		return err
	}
	if p.url, p.command, err = p.Command(p.folder, ports[0]); err != nil {
		return err
	}
	return p.run(ctx)
}

// These ports are below the range from which Linux and macOS take the ports of outgoing connections.
const firstPort, lastPort = 26000, 32700

// FreePorts returns different ports on which nothing listens. Another process can take one before a server does.
func FreePorts(n int) (ports []int, err error) {
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		listener, fault := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err = fault; err != nil {
			continue
		}
		defer func() { _ = listener.Close() }() // after the last one is found: no port is returned twice
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("no free ports on 127.0.0.1: %w", err)
}

// run starts the process, and returns when it answers.
func (p *process) run(ctx context.Context) error {
	command := exec.Command(p.command[0], p.command[1:]...)
	command.SysProcAttr = Attributes(p.User, p.Ending)
	ended, err := Launch(command, p.folder)
	if err != nil {
		return err
	}
	p.started, p.ended = command, ended
	return Await(ctx, p.ended, func(ctx context.Context) error { return p.Answers(ctx, p.url) })
}

// Launch starts a command in a folder, whose file "output" gets what it prints. The channel is closed when it has
// ended.
func Launch(command *exec.Cmd, folder string) (ended chan struct{}, err error) {
	output, err := os.Create(filepath.Join(folder, "output"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = output.Close() }()
	command.Dir, command.Stdout, command.Stderr = folder, output, output
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", command.Path, err)
	}
	ended = make(chan struct{})
	go func() { _ = command.Wait(); close(ended) }()
	return ended, nil
}

// Attributes are those of a process in a process group of its own, of another user where credential is not nil. On
// Linux the kernel sends it the signal when this process dies.
func Attributes(credential *syscall.Credential, ending syscall.Signal) *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{Setpgid: true, Credential: credential}
	endWithParent(attributes, ending)
	return attributes
}

// Await waits until the server answers. It fails when the server's process ends, and after startDeadline.
func Await(ctx context.Context, ended <-chan struct{}, answers func(context.Context) error) error {
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

// stop ends the process and removes its folder. The data is not used again: the server need not shut down in order.
func (p *process) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	p.stopped = true
	if p.started != nil {
		_ = p.started.Process.Signal(p.Ending)
		select {
		case <-p.ended:
		case <-time.After(5 * time.Second):
		}
		p.crash()
	}
	_ = os.RemoveAll(p.folder)
}

func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.crash()
}

func (p *process) crash() {
	_ = syscall.Kill(-p.started.Process.Pid, syscall.SIGKILL)
	<-p.ended
}

func (p *process) pause() (resume func()) {
	group := -p.started.Process.Pid
	_ = syscall.Kill(group, syscall.SIGSTOP)
	return func() { _ = syscall.Kill(group, syscall.SIGCONT) }
}

// restart tries for a while: PostgreSQL does not start before the last of its old processes has ended, which are in
// process groups of their own.
func (p *process) restart(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return fmt.Errorf("the private %s is stopped", p.Name)
	}
	p.crash()
	for deadline := time.Now().Add(startDeadline); ; time.Sleep(100 * time.Millisecond) {
		err := p.run(ctx)
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
	}
}

// explain stops the server and adds the end of its output to an error.
func (p *process) explain(cause error) error {
	output, _ := os.ReadFile(filepath.Join(p.folder, "output"))
	p.stop()
	lines := strings.Split(string(bytes.TrimSpace(output)), "\n")
	return fmt.Errorf("a private %s did not start: %w; the end of its output: %s", p.Name, cause,
		strings.Join(lines[max(0, len(lines)-5):], " | "))
}

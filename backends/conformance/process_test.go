package conformance

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/process"
	"github.com/tieredretry/watermill-retry/backends/conformance/pubsub"
)

// child is a process with a role. What it tries goes to the ledger.
type child struct {
	t       *testing.T
	command *exec.Cmd
	running chan struct{} // closed when its handlers have subscribed
	ended   chan struct{} // closed when it has ended, and everything that it wrote was read
	err     error         // why it ended

	retried  atomic.Int32 // copies that are safe
	outlived atomic.Int32 // calls that go on after the end of their messages' contexts
}

// role returns the role of a process that runs the app, with one handler for each topic.
func (f *fixture) role(app pubsub.App, topics []string, handler string, concurrency int) process.Role {
	r := process.Role{
		Backend: f.Name, URL: f.url, Group: app.Group, Prefix: app.Prefix, Lease: app.Lease,
		Schedule: app.Policy.Schedule, Fails: 1,
	}
	for i, topic := range topics {
		name := handler
		if len(topics) > 1 {
			name = fmt.Sprintf("%s-%d", handler, i)
		}
		r.Handlers = append(r.Handlers, process.Handler{Name: name, Topic: topic, Concurrency: concurrency})
	}
	return r
}

// start starts processes of this program with these roles, and returns when their handlers have subscribed.
func (f *fixture) start(l *ledger, roles ...process.Role) []*child {
	f.t.Helper()
	self, err := os.Executable()
	require.NoError(f.t, err)
	var all []*child
	for _, r := range roles {
		all = append(all, f.startProgram(self, 0, l, r))
	}
	for _, c := range all {
		c.await(c.running, "its handlers have not subscribed")
	}
	return all
}

// startProgram starts a program with a role. Its clock is behind by this much.
func (f *fixture) startProgram(program string, behind time.Duration, l *ledger, r process.Role) *child {
	f.t.Helper()
	settings, err := json.Marshal(r)
	require.NoError(f.t, err)
	c := &child{t: f.t, command: exec.Command(program), running: make(chan struct{}), ended: make(chan struct{})}
	c.command.Env = append(os.Environ(), process.Variable+"="+string(settings))
	c.command.Stderr = os.Stderr
	_, err = c.command.StdinPipe()
	require.NoError(f.t, err)
	output, err := c.command.StdoutPipe()
	require.NoError(f.t, err)
	require.NoError(f.t, c.command.Start())
	f.t.Cleanup(c.kill)
	go func() {
		defer close(c.ended)
		lines := bufio.NewScanner(output)
		for lines.Scan() {
			one, failed := try{}, int64(0)
			switch lines.Text() {
			case process.Running:
				close(c.running)
				continue
			case process.Copied:
				c.retried.Add(1)
				continue
			case process.Ended:
				c.outlived.Add(1)
				continue
			}
			if _, err := fmt.Sscanf(lines.Text(), process.Try, &one.failures, &failed, &one.id); err == nil {
				one.at = time.Unix(0, failed).Add(behind)
				l.put(one)
			}
		}
		c.err = c.command.Wait()
	}()
	return c
}

func (c *child) await(done <-chan struct{}, why string) {
	c.t.Helper()
	ended := c.ended
	if done == ended {
		ended = nil
	}
	select {
	case <-done:
	case <-ended:
		require.Fail(c.t, "a process has ended: "+why, "%v", c.err)
	case <-time.After(patience):
		require.Fail(c.t, "a process is too slow: "+why)
	}
}

// kill ends the process at once.
func (c *child) kill() {
	_ = c.command.Process.Kill()
	<-c.ended
}

// stop ends the process as an operator does.
func (c *child) stop() {
	c.t.Helper()
	assert.NoError(c.t, c.command.Process.Signal(syscall.SIGTERM))
	c.await(c.ended, "it has not ended after SIGTERM")
	assert.NoError(c.t, c.err)
}

// pause stops the process from running until resume.
func (c *child) pause() {
	c.t.Helper()
	require.NoError(c.t, c.command.Process.Signal(syscall.SIGSTOP))
}

func (c *child) resume() {
	c.t.Helper()
	require.NoError(c.t, c.command.Process.Signal(syscall.SIGCONT))
}

func stopAll(all []*child) {
	var stopped sync.WaitGroup
	for _, c := range all {
		stopped.Go(c.stop)
	}
	stopped.Wait()
}

// dies waits until the process has killed itself.
func (c *child) dies() {
	c.t.Helper()
	c.await(c.ended, "it has not killed itself")
	var exit *exec.ExitError
	require.True(c.t, errors.As(c.err, &exit), "%v", c.err)
	status, known := exit.Sys().(syscall.WaitStatus)
	require.True(c.t, known && status.Signal() == syscall.SIGKILL, "%v", c.err)
}

package conformance

import (
	"bufio"
	"errors"
	"fmt"
	"io"
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
	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
	processes "github.com/tieredretry/watermill-retry/tools/child"
)

// child is a process with a role. What it tries goes to the ledger.
type child struct {
	*processes.Child
	t       *testing.T
	running chan struct{} // closed when its handlers have subscribed

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
	var all []*child
	for _, r := range roles {
		all = append(all, f.startProgram("", 0, l, r))
	}
	for _, c := range all {
		c.await(c.running, "its handlers have not subscribed")
	}
	return all
}

// startProgram starts a program with a role. Its clock is behind by this much.
func (f *fixture) startProgram(program string, behind time.Duration, l *ledger, r process.Role) *child {
	f.t.Helper()
	c := &child{t: f.t, running: make(chan struct{})}
	var err error
	c.Child, err = processes.Start(program, process.Name, r, func(output io.Reader) {
		lines := bufio.NewScanner(output)
		for lines.Scan() {
			one, failed := try{}, int64(0)
			switch lines.Text() {
			case processes.Ready:
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
	})
	require.NoError(f.t, err)
	f.t.Cleanup(c.Kill)
	return c
}

func (c *child) await(done <-chan struct{}, why string) {
	c.t.Helper()
	ended := c.Ended
	if done == ended {
		ended = nil
	}
	select {
	case <-done:
	case <-ended:
		require.Fail(c.t, "a process has ended: "+why, "%v", c.Err)
	case <-time.After(wait.Patience):
		require.Fail(c.t, "a process is too slow: "+why)
	}
}

// stop ends the process as an operator does.
func (c *child) stop() {
	c.t.Helper()
	assert.NoError(c.t, c.Process.Signal(syscall.SIGTERM))
	c.await(c.Ended, "it has not ended after SIGTERM")
	assert.NoError(c.t, c.Err)
}

// pause stops the process from running until resume.
func (c *child) pause() {
	c.t.Helper()
	require.NoError(c.t, c.Process.Signal(syscall.SIGSTOP))
}

func (c *child) resume() {
	c.t.Helper()
	require.NoError(c.t, c.Process.Signal(syscall.SIGCONT))
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
	c.await(c.Ended, "it has not killed itself")
	var exit *exec.ExitError
	require.True(c.t, errors.As(c.Err, &exit), "%v", c.Err)
	status, known := exit.Sys().(syscall.WaitStatus)
	require.True(c.t, known && status.Signal() == syscall.SIGKILL, "%v", c.Err)
}

//go:build unix

// Package child runs a part of a program in a process of its own, which starts the same program again in a role. It is
// for the programs of this repository that kill processes or measure them.
package child

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// variable is the environment variable with the task of a process, as JSON.
const variable = "WATERMILL_RETRY_CHILD"

type task struct {
	Role     string
	Settings json.RawMessage
}

// A Role is what a process does. The context ends when it is told to end, by a signal.
type Role func(ctx context.Context, settings []byte) error

// Of returns a role with settings of a type.
func Of[T any](play func(context.Context, T) error) Role {
	return func(ctx context.Context, text []byte) error {
		var settings T
		if err := json.Unmarshal(text, &settings); err != nil {
			return err
		}
		return play(ctx, settings)
	}
}

// Main plays the role of this process and does not return, where it has one. Call it first.
func Main(roles map[string]Role) {
	text := os.Getenv(variable)
	if text == "" {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	var t task
	err := json.Unmarshal([]byte(text), &t)
	if err == nil {
		err = fmt.Errorf("this program has no role %q", t.Role)
		if play, known := roles[t.Role]; known {
			err = play(ctx, t.Settings)
		}
	}
	if err != nil {
		_, _ = fmt.Fprintf(os.Stderr, "%s: %v\n", t.Role, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// EndWithParent ends this process at once where its parent ends.
func EndWithParent() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
}

// Write writes a line to the parent in one call: a process that is killed has written it whole, or not at all.
func Write(line string) { _, _ = os.Stdout.WriteString(line + "\n") }

// Ready is the line that a process writes when StartReady may return.
const Ready = "ready"

// readyTimeout leaves time for a server that starts meanwhile.
const readyTimeout = 90 * time.Second

// A Child is a process in a role. It gets no Ctrl-C. Its stdin ends with its parent.
type Child struct {
	*exec.Cmd
	Input io.WriteCloser
	Ended <-chan struct{} // closed when it has ended, and all that it has written was read
	Err   error           // then: why it has ended
}

// Start starts a program in a role, or this program where it has no name. read gets what it writes.
func Start(program, role string, settings any, read func(io.Reader)) (*Child, error) {
	text, err := json.Marshal(settings)
	if err != nil {
		return nil, err
	}
	if text, err = json.Marshal(task{role, text}); err != nil {
		return nil, err
	}
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	ended := make(chan struct{})
	c := &Child{Cmd: exec.Command(program), Ended: ended}
	c.Env = append(os.Environ(), variable+"="+string(text))
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	output, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if c.Input, err = c.StdinPipe(); err != nil {
		return nil, err
	}
	if err := c.Cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(ended)
		read(output)
		c.Err = c.Wait()
	}()
	return c, nil
}

// StartReady starts this program in a role, and returns when the process is ready. line gets each other line that it
// writes.
func StartReady(role string, settings any, line func(string)) (*Child, error) {
	ready := make(chan struct{})
	c, err := Start("", role, settings, func(output io.Reader) {
		for lines := bufio.NewScanner(output); lines.Scan(); {
			if lines.Text() == Ready {
				close(ready)
			} else {
				line(lines.Text())
			}
		}
	})
	if err != nil {
		return nil, err
	}
	select {
	case <-ready:
		return c, nil
	case <-c.Ended:
	case <-time.After(readyTimeout):
		c.Kill()
	}
	return nil, fmt.Errorf("the process %q was not ready within %v: %v", role, readyTimeout, c.Err)
}

// Kill sends SIGKILL, and waits for the end.
func (c *Child) Kill() {
	_ = c.Process.Kill()
	<-c.Ended
}

// A process that is told to end has this time, and one that prints its goroutines has the other one.
const stopTimeout, quitTimeout = 2 * time.Minute, 30 * time.Second

// Stop sends SIGTERM, and waits for the end. A process that hangs prints its goroutines and is killed.
func (c *Child) Stop() error { return c.stop(stopTimeout) }

func (c *Child) stop(patience time.Duration) error {
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-c.Ended:
		return c.Err
	case <-time.After(patience):
		c.Quit()
		return fmt.Errorf("it has not ended %v after SIGTERM, its goroutines are on stderr: %v", patience, c.Err)
	}
}

// Quit makes a process print its goroutines on stderr, and waits for its end.
func (c *Child) Quit() {
	_ = c.Process.Signal(syscall.SIGQUIT)
	select {
	case <-c.Ended:
	case <-time.After(quitTimeout):
		c.Kill()
	}
}

// Finish ends the input of the process, and waits for its end.
func (c *Child) Finish() error {
	_ = c.Input.Close()
	<-c.Ended
	return c.Err
}

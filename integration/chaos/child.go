package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

const childVariable = "CHAOS_CONSUMER"

// child is a consumer in a process of its own, which runs this program.
type child struct {
	process *exec.Cmd
	input   io.Closer // the child shuts down when it is closed
	read    sync.WaitGroup
	last    struct{ before, after int }
}

func (l *Load) startChild() error {
	settings, err := json.Marshal(l.config)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c := &child{process: exec.Command(self)}
	c.process.Env = append(os.Environ(), childVariable+"="+string(settings))
	c.process.Stderr = os.Stderr
	c.process.SysProcAttr = ownGroup()
	output, err := c.process.StdoutPipe()
	if err != nil {
		return err
	}
	if c.input, err = c.process.StdinPipe(); err != nil {
		return err
	}
	if err := c.process.Start(); err != nil {
		return err
	}
	running := make(chan struct{})
	c.read.Go(func() { c.listen(output, l.ledger, running) })
	l.child = c
	select {
	case <-running:
		return nil
	case <-time.After(30 * time.Second):
		return errors.New("the child did not start within 30s")
	}
}

// listen reads the child's lines. The child writes each line before its handler returns.
func (c *child) listen(output io.Reader, l *Ledger, running chan<- struct{}) {
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "running":
			close(running)
		case "handled":
			l.handled(rest)
		case "moved":
			var id, queue string
			var wait time.Duration
			var dead bool
			if _, err := fmt.Sscanf(rest, "%s %s %d %t", &id, &queue, &wait, &dead); err == nil {
				l.moved(id, queue, wait, dead)
			}
		case "end":
			_, _ = fmt.Sscanf(rest, "%d %d", &c.last.before, &c.last.after)
		}
	}
}

// kill sends SIGKILL.
func (c *child) kill() {
	_ = c.process.Process.Kill()
	c.read.Wait()
	_ = c.process.Wait()
}

func (c *child) finish(row *Row) error {
	_ = c.input.Close()
	c.read.Wait()
	err := c.process.Wait()
	row.Before, row.After = c.last.before, c.last.after
	return err
}

type lineReport struct{}

func (lineReport) extra() time.Duration { return 0 }

func (lineReport) disturb(string) error { return nil }

func (lineReport) handled(identity string) {
	_, _ = os.Stdout.WriteString("handled " + identity + "\n")
}

func (lineReport) moved(identity, queue string, wait time.Duration, dead bool) {
	_, _ = os.Stdout.WriteString(fmt.Sprintf("moved %s %s %d %t\n", identity, queue, wait, dead))
}

// consumer runs a consumer in this process.
func consumer(ctx context.Context, settings string) error {
	var c appConfig
	if err := json.Unmarshal([]byte(settings), &c); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(ended) }() // this process ends with its parent
	before := len(goroutines())
	a, err := startApp(ctx, c, lineReport{})
	if err != nil {
		return err
	}
	_, _ = os.Stdout.WriteString("running\n")
	select {
	case <-ended:
		before-- // the reader of the input has ended
	case <-ctx.Done():
	}
	if err := a.close(); err != nil {
		return err
	}
	after := len(settled(before))
	_, _ = os.Stdout.WriteString(fmt.Sprintf("end %d %d\n", before, after))
	return nil
}

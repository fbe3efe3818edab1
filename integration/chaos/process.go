package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"go.uber.org/goleak"

	"github.com/tieredretry/watermill-retry/integration/broker"
)

// The variables with the task of a process that runs one row, so that the goroutines are those of this row only, or
// one consumer.
const (
	rowVariable   = "CHAOS_ROW"
	childVariable = "CHAOS_CONSUMER"
	orderVariable = "CHAOS_ORDER"
)

type rowTask struct {
	Fault   string
	Broker  Broker
	Options Options
}

// apartMain must be called first, because the processes of rows and of consumers run the same program. In those
// processes it does not return.
func apartMain() {
	var do func(context.Context, string) error
	var task string
	for variable, f := range map[string]func(context.Context, string) error{
		childVariable: consumer, orderVariable: orderConsumer, rowVariable: oneFault,
	} {
		if text := os.Getenv(variable); text != "" {
			do, task = f, text
		}
	}
	if do == nil {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := do(ctx, task)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// thisProgram is a process with a task. It gets no Ctrl-C, but ends when its parent says so.
func thisProgram(ctx context.Context, variable string, task any) (*exec.Cmd, error) {
	text, err := json.Marshal(task)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	process := exec.CommandContext(ctx, self)
	process.Env = append(os.Environ(), variable+"="+string(text))
	process.Stderr = os.Stderr
	return process, nil
}

func oneFault(ctx context.Context, text string) error {
	var task rowTask
	if err := json.Unmarshal([]byte(text), &task); err != nil {
		return err
	}
	_ = os.Unsetenv(rowVariable)
	for _, fault := range All() {
		if fault.Name == task.Fault {
			return json.NewEncoder(os.Stdout).Encode(runHere(ctx, fault, task.Broker, task.Options))
		}
	}
	return fmt.Errorf("no fault has the name %q", task.Fault)
}

// Run disturbs the app with a fault, in a process of its own, which shuts down when ctx ends. If a fault that
// disturbs the whole broker ends with an error, Run restores the broker.
func Run(ctx context.Context, fault Fault, b Broker, o Options) Row {
	row, err := apart(ctx, rowTask{fault.Name, b, o})
	if err != nil {
		row = Row{Fault: fault.Name, Broker: b.Name, NotRun: err.Error()}
	}
	if row.NotRun != "" && fault.Alone() && fault.Missing(b) == "" {
		if err := b.Restore(); err != nil {
			row.NotRun += "; and the broker could not be restored: " + err.Error()
		}
	}
	return row
}

func apart(ctx context.Context, task rowTask) (row Row, err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	process, err := thisProgram(ctx, rowVariable, task)
	if err != nil {
		return row, err
	}
	process.Cancel = func() error { return process.Process.Signal(os.Interrupt) }
	process.WaitDelay = 2 * time.Minute
	output, err := process.Output()
	if err != nil {
		return row, fmt.Errorf("the process of the row: %w", err)
	}
	return row, json.Unmarshal(output, &row)
}

// child is a consumer in a process of its own.
type child struct {
	process *exec.Cmd
	input   io.Closer // the child shuts down when it is closed
	read    sync.WaitGroup
	leaked  bool
}

// An event is a line of a child. The child writes each before its handler returns.
type event struct {
	What, Identity, Queue string
	Wait                  time.Duration
	Is                    bool // moved to the dead letters; the child has leaked goroutines
}

func (e event) write() { _ = json.NewEncoder(os.Stdout).Encode(e) }

func (l *Load) startChild() (err error) {
	l.child, err = startProcess(childVariable, l.config, func(e event) {
		switch e.What {
		case "handled":
			l.ledger.handled(e.Identity)
		case "moved":
			l.ledger.moved(e.Identity, e.Queue, e.Wait, e.Is)
		}
	})
	return err
}

// startProcess starts a child, and returns when it runs.
func startProcess(variable string, task any, seen func(event)) (*child, error) {
	process, err := thisProgram(context.Background(), variable, task)
	if err != nil {
		return nil, err
	}
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c := &child{process: process}
	output, err := process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if c.input, err = process.StdinPipe(); err != nil {
		return nil, err
	}
	if err := process.Start(); err != nil {
		return nil, err
	}
	running := make(chan struct{})
	c.read.Go(func() {
		var e event
		for lines := json.NewDecoder(output); lines.Decode(&e) == nil; e = (event{}) {
			switch e.What {
			case "running":
				close(running)
			case "end":
				c.leaked = e.Is
			default:
				seen(e)
			}
		}
	})
	select {
	case <-running:
		return c, nil
	case <-time.After(30 * time.Second):
		c.kill()
		return nil, errors.New("the child did not start within 30s")
	}
}

// kill sends SIGKILL.
func (c *child) kill() {
	_ = c.process.Process.Kill()
	c.read.Wait()
	_ = c.process.Wait()
}

// terminate ends the child with SIGTERM, in order.
func (c *child) terminate() error {
	if err := c.process.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return c.finish()
}

// finish ends the child in order.
func (c *child) finish() error {
	_ = c.input.Close()
	c.read.Wait()
	return c.process.Wait()
}

// writes is the report of a child.
type writes struct{}

func (writes) extra() time.Duration { return 0 }

func (writes) disturb(string) error { return nil }

func (writes) handled(identity string) { event{What: "handled", Identity: identity}.write() }

func (writes) moved(identity, queue string, wait time.Duration, dead bool) {
	event{"moved", identity, queue, wait, dead}.write()
}

// consumer runs a consumer in this process.
func consumer(ctx context.Context, settings string) error {
	var c appConfig
	if err := json.Unmarshal([]byte(settings), &c); err != nil {
		return err
	}
	return untilTheEnd(ctx, func() (func() error, error) {
		a, err := startApp(ctx, c, writes{})
		if err != nil {
			return nil, err
		}
		return a.close, nil
	})
}

// untilTheEnd runs what start has started until this process is to end.
func untilTheEnd(ctx context.Context, start func() (end func() error, err error)) error {
	ended := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(ended) }() // this process ends with its parent
	before := goleak.IgnoreCurrent()
	end, err := start()
	if err != nil {
		return err
	}
	event{What: "running"}.write()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	if err := end(); err != nil {
		return err
	}
	event{What: "end", Is: leaked(before)}.write()
	return nil
}

// leaked reports, after some time, whether there are goroutines besides those before and those of the proxy.
func leaked(before goleak.Option) bool {
	var err error
	for range 20 { // each look takes up to half a second
		if err = goleak.Find(append(broker.LeaksOfProxies(), before)...); err == nil {
			return false
		}
	}
	fmt.Fprintln(os.Stderr, "goroutines left:", err)
	return true
}

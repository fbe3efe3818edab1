package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"go.uber.org/goleak"

	"github.com/tieredretry/watermill-retry/tools/child"
)

// roles are those of the processes of this program. One runs a row, so that the goroutines are those of this row only,
// and the others are consumers.
var roles = map[string]child.Role{
	"row": child.Of(oneFault), "consumer": child.Of(consumer), "order": child.Of(orderConsumer),
}

type rowTask struct {
	Fault   string
	Broker  Broker
	Options Options
}

func oneFault(ctx context.Context, task rowTask) error {
	for _, fault := range All() {
		if fault.Name == task.Fault {
			return json.NewEncoder(os.Stdout).Encode(runHere(ctx, fault, task.Broker, task.Options))
		}
	}
	return fmt.Errorf("no fault has the name %q", task.Fault)
}

// Run disturbs the app with a fault, in a process of its own, which shuts down when ctx ends. If a fault that
// disturbs the whole broker ends with an error, Run restores the broker.
// A row on a node that forwards nothing any more says nothing: it runs once more, on the node restarted.
func Run(ctx context.Context, fault Fault, b Broker, o Options) Row {
	row, err := apart(ctx, rowTask{fault.Name, b, o})
	if (err != nil || row.Faulty() != "") && fault.Alone() && !b.forwards() {
		fmt.Println("once more:", row, "The supervisor rabbit_fifo_dlx_sup of the node has ended.")
		if err = b.restart(); err == nil {
			row, err = apart(ctx, rowTask{fault.Name, b, o})
		}
	}
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

// The longest that a row may take: longer than each wait in it. A short row ends well before the time of its test.
const longest, longestShort = 20 * time.Minute, 9 * time.Minute

func apart(ctx context.Context, task rowTask) (row Row, err error) {
	limit := longest
	if task.Options.Short {
		limit = longestShort
	}
	var fault error
	process, err := child.Start("", "row", task, func(output io.Reader) {
		fault = json.NewDecoder(output).Decode(&row)
	})
	if err != nil {
		return row, err
	}
	stands := time.After(limit)
	select {
	case <-process.Ended:
	case <-ctx.Done():
		_ = process.Process.Signal(os.Interrupt)
		stands = time.After(2 * time.Minute)
	case <-stands:
		err = fmt.Errorf("it has not ended after %v: its goroutines are above", limit)
		_ = process.Process.Signal(syscall.SIGQUIT)
		stands = time.After(time.Minute)
	}
	select {
	case <-process.Ended:
	case <-stands:
		process.Kill()
	}
	if err := errors.Join(err, process.Err, fault); err != nil {
		return row, fmt.Errorf("the process of the row: %w", err)
	}
	return row, nil
}

// consumerProcess is a consumer in a process of its own.
type consumerProcess struct {
	*child.Child
	leaked bool
}

// An event is a line of a child. The child writes each before its handler returns.
type event struct {
	What, Identity, Queue string
	Wait                  time.Duration
	Is                    bool // moved to the dead letters; the child has leaked goroutines
}

func (e event) write() { _ = json.NewEncoder(os.Stdout).Encode(e) }

func (l *Load) startChild() (err error) {
	l.child, err = startProcess("consumer", l.config, func(e event) {
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
func startProcess(role string, task any, seen func(event)) (c *consumerProcess, err error) {
	c = &consumerProcess{}
	c.Child, err = child.StartReady(role, task, func(line string) {
		var e event
		switch fault := json.Unmarshal([]byte(line), &e); {
		case fault != nil: // of a process that was killed
		case e.What == "end":
			c.leaked = e.Is
		default:
			seen(e)
		}
	})
	if err != nil {
		return nil, err
	}
	return c, nil
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
func consumer(ctx context.Context, c appConfig) error {
	return untilTheEnd(ctx, func() (func() error, error) {
		a, err := startApp(c, writes{})
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
	child.Write(child.Ready)
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

// leaked reports, after some time, whether there are goroutines besides those before.
func leaked(before goleak.Option) bool {
	var err error
	for range 20 { // each look takes up to half a second
		if err = goleak.Find(before); err == nil {
			return false
		}
	}
	fmt.Fprintln(os.Stderr, "goroutines left:", err)
	return true
}

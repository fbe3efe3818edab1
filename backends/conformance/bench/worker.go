package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/tools/child"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

// topic is that of the app.
const topic = "orders"

// A worker is a process of the app. It writes its calls to stdout. The first line of its stdin opens the gate, and the
// end of stdin ends it.
type worker struct {
	Backend, Server string
	Side            sideName
	Profile         string // the file of its CPU profile; empty: none
}

// A call is what a worker reports of a call of the handler. The time is in ns since 1970.
type call struct{ message, failures, at int64 }

const callFormat = "%d %d %d"

// calls reports the calls of a worker.
type calls struct {
	gate  chan struct{}
	first sync.Once

	mu  sync.Mutex
	out *bufio.Writer
}

// flush writes what was reported, every now and then.
func (c *calls) flush() {
	for range time.Tick(5 * time.Millisecond) {
		c.mu.Lock()
		_ = c.out.Flush()
		c.mu.Unlock()
	}
}

// handle is the handler on both sides. A message fails once. The process is ready when the first one waits for the
// gate.
func (c *calls) handle(id string, failures int) (fails bool) {
	c.first.Do(func() { child.Write(child.Ready) })
	<-c.gate
	number, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		number = -1 // a foreign one
	}
	at := time.Now().UnixNano()
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = fmt.Fprintf(c.out, callFormat+"\n", number, failures, at)
	return failures == 0
}

// roles are those of the processes.
var roles = map[string]child.Role{"worker": child.Of(func(_ context.Context, w worker) error {
	if err := w.run(); err != nil {
		return fmt.Errorf("%s, %s: %w", w.Backend, w.Side, err)
	}
	return nil
})}

func (w worker) run() (err error) {
	c := &calls{gate: make(chan struct{}), out: bufio.NewWriter(os.Stdout)}
	go c.flush()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 30 * time.Second}, logger())
	if err != nil {
		return err
	}
	b, err := find(w.Backend)
	if err != nil {
		return err
	}
	open := w.hand
	if w.Side == ownSide {
		open = w.own
	}
	app, err := open(b, router, c) // closed when the router has ended
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(context.Background())
	go func() {
		defer end()
		in := bufio.NewReader(os.Stdin)
		if _, err := in.ReadBytes('\n'); err == nil {
			close(c.gate)
			_, _ = io.Copy(io.Discard, in)
		}
	}()
	endProfile, err := claims.Profile(w.Profile)
	if err != nil {
		return err
	}
	err = errors.Join(router.Run(ctx), app.Close(), endProfile())
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(err, c.out.Flush())
}

func logger() watermill.LoggerAdapter {
	if os.Getenv("BENCH_LOG") != "" {
		return watermill.NewStdLogger(false, false)
	}
	return watermill.NopLogger{}
}

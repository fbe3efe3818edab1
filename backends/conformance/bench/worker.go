package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
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

// A worker is a process of the app. It writes its calls to stdout. The first line of its stdin opens the gate, and the
// end of stdin ends it.
type worker struct {
	Backend, Server string
	Side            sideName
	Topic, Prefix   string
	Profile         string // the file of its CPU profile; empty: none
	Copies          bool   // it reports the copies
}

// A call is what a worker reports of a call of the handler. At is when a call that fails ends, and when a call that
// succeeds begins, in ns since 1970.
type call struct {
	Message, Failures, At, Delay int64
}

// What a worker reports in place of a message.
const (
	running = -1 // the handlers have subscribed
	waits   = -2 // the first message waits for the gate
	copied  = -3 // a copy is stored, of the message whose number stands in place of the failures
)

// start is the line that opens the gate.
type start struct {
	Due int64 // when all messages are due, in ns since 1970; 0: each after a tier
}

// calls reports the calls of a worker.
type calls struct {
	gate  chan struct{}
	start start
	first sync.Once

	mu  sync.Mutex
	out *bufio.Writer
}

func (c *calls) report(one call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = binary.Write(c.out, binary.LittleEndian, one)
	if one.Message == running || one.Message == waits {
		_ = c.out.Flush()
	}
}

// flush writes what was reported, every now and then.
func (c *calls) flush() {
	for range time.Tick(5 * time.Millisecond) {
		c.mu.Lock()
		_ = c.out.Flush()
		c.mu.Unlock()
	}
}

// handle is the handler on both sides. A message fails once. It returns how long it has to wait then.
func (c *calls) handle(id string, failures int) (delay time.Duration, fails bool) {
	c.first.Do(func() { c.report(call{Message: waits}) })
	<-c.gate
	number, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		number = 1 << 40 // a foreign one
	}
	one := call{Message: number, Failures: int64(failures), At: time.Now().UnixNano()}
	if fails = failures == 0; fails {
		delay = tier
		if c.start.Due > 0 {
			delay = max(time.Duration(c.start.Due-one.At), soonest)
		}
		one.Delay = int64(delay)
	}
	c.report(one)
	return delay, fails
}

// roles are those of the processes of a session.
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
	app, err := w.app(router, c)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(context.Background())
	go func() {
		defer end()
		in := bufio.NewReader(os.Stdin)
		line, err := in.ReadBytes('\n')
		if err != nil || json.Unmarshal(line, &c.start) != nil {
			return
		}
		close(c.gate)
		_, _ = io.Copy(io.Discard, in)
	}()
	go func() {
		select {
		case <-router.Running():
			c.report(call{Message: running})
		case <-ctx.Done():
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

// app adds the handlers of the worker's side to the router. The app that it returns is closed when the router has
// ended.
func (w worker) app(router *message.Router, c *calls) (io.Closer, error) {
	if w.Side == ownSide {
		return w.own(router, c)
	}
	backend, err := find(w.Backend)
	if err != nil {
		return nil, err
	}
	return w.hand(backend, router, c)
}

func logger() watermill.LoggerAdapter {
	if os.Getenv("BENCH_LOG") != "" {
		return watermill.NewStdLogger(false, false)
	}
	return watermill.NopLogger{}
}

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backends/conformance/pubsub"
	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
	"github.com/tieredretry/watermill-retry/tools/child"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

// A sideName is who retries.
type sideName string

const (
	ownSide  sideName = "library"
	handSide sideName = "by hand"
)

// A session is one measurement: messages on a new topic, which processes of the app handle.
type session struct {
	side      sideName
	processes int
	messages  int
	together  time.Duration // after which all messages are due; 0: each is due a tier after it has failed
	death     deathName     // when all copies are stored, and none is due
}

// A deathName is how processes of a session end before it does.
type deathName string

const (
	killed  deathName = "SIGKILL of all, and a start"
	stopped deathName = "SIGTERM of one"
)

func (s session) String() string {
	if s.death != "" {
		return string(s.death)
	}
	if s.processes == 1 {
		return string(s.side)
	}
	return fmt.Sprintf("%s, %d processes", s.side, s.processes)
}

// play measures a session. Where messages are lost, early or foreign, it returns the result and an error.
func (r *run) play(s session) (*result, error) {
	r.sessions++
	address, err := r.fresh(r.server, r.sessions)
	if err != nil {
		return nil, fmt.Errorf("cannot remove what the session before has left: %w", err)
	}
	w := worker{
		Backend: r.name, Server: address, Side: s.side,
		Topic: fmt.Sprintf("orders%d", r.sessions), Prefix: fmt.Sprintf("retry%d", r.sessions),
		Copies: s.death != "",
	}
	if err := r.prepare(address, w.Topic); err != nil {
		return nil, fmt.Errorf("cannot create the topic: %w", err)
	}
	if err := r.fill(address, w.Topic, s.messages); err != nil {
		return nil, fmt.Errorf("cannot publish the messages: %w", err)
	}
	l := newLedger(s.messages)
	var began time.Time
	err = r.work(w, s, l, &began)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s, err)
	}
	result, err := l.result(began)
	if err != nil {
		return result, fmt.Errorf("%s: %w", s, err)
	}
	if s.side == ownSide {
		app := pubsub.App{Group: group, Prefix: w.Prefix}
		if result.left, err = r.pubSub(address).Left(context.Background(), app, []string{w.Topic}); err != nil {
			return result, fmt.Errorf("cannot count what is left: %w", err)
		}
	}
	return result, nil
}

// pubSub opens the backend as the conformance suite does, with Watermill's own publisher.
func (b backend) pubSub(address string) pubsub.Backend {
	entry, err := registry.Find(b.name)
	if err != nil {
		panic(err)
	}
	return entry.Open(address, logger())
}

// payload has 512 bytes.
var payload = make([]byte, 512)

// fill publishes the messages. Their identities are their numbers.
func (r *run) fill(address, topic string, messages int) error {
	const publishers, batch = 8, 100
	publisher, err := r.pubSub(address).Publisher()
	if err != nil {
		return err
	}
	err = claims.Together(publishers, func(p int) error {
		for from := p * batch; from < messages; from += publishers * batch {
			var all []*message.Message
			for i := from; i < min(from+batch, messages); i++ {
				all = append(all, message.NewMessage(strconv.Itoa(i), payload))
			}
			if err := publisher.Publish(topic, all...); err != nil {
				return err
			}
		}
		return nil
	})
	return errors.Join(err, publisher.Close())
}

// work runs the processes of a session until all messages are back, and ends them in order.
func (r *run) work(w worker, s session, l *ledger, began *time.Time) error {
	g := &processes{run: r, session: s, worker: w, ledger: l,
		ready: make(chan int64, 2*s.processes+2), ended: make(chan error, s.processes+1)}
	defer g.stop()
	for range s.processes {
		if err := g.start(); err != nil {
			return err
		}
	}
	if err := r.await(s.processes, g.ready, g.ended); err != nil {
		return err
	}
	*began = time.Now()
	var first start
	if s.together > 0 {
		first.Due = began.Add(s.together).UnixNano()
	}
	line, err := json.Marshal(first)
	if err != nil {
		return err
	}
	g.gate = append(line, '\n')
	for _, one := range g.all {
		if _, err := one.Input.Write(g.gate); err != nil {
			return err
		}
	}
	if s.death != "" {
		if err := g.die(); err != nil {
			return err
		}
	}
	if err := l.Wait(s.together, g.ended); err != nil {
		return err
	}
	g.stop()
	select {
	case err := <-g.ended:
		return fmt.Errorf("a process of the app did not end well: %w", err)
	default:
		return nil
	}
}

// processes are those of a session.
type processes struct {
	*run
	session
	worker worker
	ledger *ledger
	gate   []byte // the line that opens it
	ready  chan int64
	ended  chan error
	all    []*measured
	group  sync.WaitGroup
}

type measured struct {
	*child.Child
	gone atomic.Bool // it was killed
}

func (g *processes) start() error {
	w := g.worker
	if g.Profiles != "" && len(g.all) == 0 && g.session.processes == 1 {
		w.Profile = filepath.Join(g.Profiles, g.question+"-"+string(g.side)+".pprof")
	}
	one := &measured{}
	var err error
	one.Child, err = child.Start("", "worker", w, func(output io.Reader) { g.ledger.read(output, g.ready) })
	if err != nil {
		return err
	}
	g.all = append(g.all, one)
	g.group.Go(func() {
		if <-one.Ended; one.Err != nil && !one.gone.Load() {
			g.ended <- one.Err
		}
	})
	if g.gate != nil {
		_, err = one.Input.Write(g.gate)
	}
	return err
}

// stop ends the processes in order.
func (g *processes) stop() {
	for _, one := range g.all {
		_ = one.Input.Close()
	}
	g.group.Wait()
}

// die ends processes when all copies are stored.
func (g *processes) die() error {
	select {
	case <-g.ledger.stored:
	case err := <-g.ended:
		return fmt.Errorf("a process of the app has ended: %w", err)
	case <-time.After(claims.Patience):
		return errors.New("the copies are not stored")
	}
	if g.death == stopped {
		return g.all[0].Input.Close()
	}
	for _, one := range g.all {
		one.gone.Store(true)
		if err := one.Process.Kill(); err != nil {
			return err
		}
	}
	return g.start()
}

// await waits until all processes have subscribed, and one of them has a message: each of them, where the server gives
// each its part of the topic when it has joined.
func (r *run) await(processes int, ready <-chan int64, ended <-chan error) error {
	missing := map[int64]int{running: processes, waits: 1}
	if r.partitions > 1 {
		missing[waits] = processes
	}
	for limit := time.After(claims.Patience); missing[running] > 0 || missing[waits] > 0; {
		select {
		case what := <-ready:
			missing[what]--
		case err := <-ended:
			return fmt.Errorf("a process of the app has ended: %w", err)
		case <-limit:
			return fmt.Errorf("%d processes do not run, %d have no message", missing[running], missing[waits])
		}
	}
	return nil
}

// read adds the calls of a worker until it ends.
func (l *ledger) read(from io.Reader, ready chan<- int64) {
	in := bufio.NewReaderSize(from, 1<<16)
	for {
		var c call
		if err := binary.Read(in, binary.LittleEndian, &c); err != nil {
			return
		}
		if c.Message == copied {
			l.copy(c.Failures)
			continue
		}
		if c.Message == running || c.Message == waits {
			ready <- c.Message
			continue
		}
		l.add(c)
	}
}

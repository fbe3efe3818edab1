package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
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
}

func (s session) String() string {
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
	if result.left, err = r.left(address, w); err != nil {
		return result, fmt.Errorf("cannot count what is left: %w", err)
	}
	return result, nil
}

// payload has 512 bytes.
var payload = make([]byte, 512)

// fill publishes the messages. Their identities are their numbers.
func (r *run) fill(address, topic string, messages int) error {
	const publishers, batch = 8, 100
	publisher, err := r.publisher(address)
	if err != nil {
		return err
	}
	faults := make([]error, publishers)
	var group sync.WaitGroup
	for p := range publishers {
		group.Go(func() {
			for from := p * batch; from < messages && faults[p] == nil; from += publishers * batch {
				var all []*message.Message
				for i := from; i < min(from+batch, messages); i++ {
					all = append(all, message.NewMessage(strconv.Itoa(i), payload))
				}
				faults[p] = publisher.Publish(topic, all...)
			}
		})
	}
	group.Wait()
	return errors.Join(append(faults, publisher.Close())...)
}

// work runs the processes of a session until all messages are back, and ends them in order.
func (r *run) work(w worker, s session, l *ledger, began *time.Time) error {
	ready := make(chan int64, 2*s.processes)
	ended := make(chan error, s.processes)
	var all []io.WriteCloser
	var group sync.WaitGroup
	stop := func() {
		for _, stdin := range all {
			_ = stdin.Close()
		}
		group.Wait()
	}
	defer stop()
	for i := range s.processes {
		if w.Profile = ""; r.profiles != "" && i == 0 && s.processes == 1 {
			w.Profile = filepath.Join(r.profiles, r.question+"-"+string(s.side)+".pprof")
		}
		process, stdin, stdout, err := w.process()
		if err != nil {
			return err
		}
		all = append(all, stdin)
		group.Go(func() {
			l.read(stdout, ready)
			if err := process.Wait(); err != nil {
				ended <- err
			}
		})
	}
	if err := r.await(s.processes, ready, ended); err != nil {
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
	for _, stdin := range all {
		if _, err := stdin.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	if err := l.wait(s.together, ended); err != nil {
		return err
	}
	stop()
	select {
	case err := <-ended:
		return fmt.Errorf("a process of the app did not end well: %w", err)
	default:
		return nil
	}
}

// await waits until all processes have subscribed, and one of them has a message: each of them, where the server gives
// each its part of the topic when it has joined.
func (r *run) await(processes int, ready <-chan int64, ended <-chan error) error {
	missing := map[int64]int{running: processes, waits: 1}
	if r.partitions > 1 {
		missing[waits] = processes
	}
	for limit := time.After(patience); missing[running] > 0 || missing[waits] > 0; {
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

// process starts a worker.
func (w worker) process() (*exec.Cmd, io.WriteCloser, io.Reader, error) {
	settings, err := json.Marshal(w)
	if err != nil {
		return nil, nil, nil, err
	}
	own, err := os.Executable()
	if err != nil {
		return nil, nil, nil, err
	}
	process := exec.Command(own)
	process.Env = append(os.Environ(), workerVariable+"="+string(settings))
	process.Stderr = os.Stderr
	stdin, err := process.StdinPipe()
	if err != nil {
		return nil, nil, nil, err
	}
	stdout, err := process.StdoutPipe()
	if err != nil {
		return nil, nil, nil, err
	}
	return process, stdin, stdout, process.Start()
}

// read adds the calls of a worker until it ends.
func (l *ledger) read(from io.Reader, ready chan<- int64) {
	in := bufio.NewReaderSize(from, 1<<16)
	for {
		var c call
		if err := binary.Read(in, binary.LittleEndian, &c); err != nil {
			return
		}
		if c.Message == running || c.Message == waits {
			ready <- c.Message
			continue
		}
		l.add(c)
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backends/conformance/pubsub"
	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
	"github.com/tieredretry/watermill-retry/backends/conformance/servers"
	"github.com/tieredretry/watermill-retry/tools/child"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

// A sideName is who retries.
type sideName string

const (
	ownSide  sideName = "library"
	handSide sideName = "by hand"
)

// start starts a server for one measurement.
func (b backend) start(ctx context.Context) (*servers.Server, error) {
	entry, err := registry.Find(b.name)
	if err != nil {
		return nil, err
	}
	return entry.Start(ctx)
}

// play measures how long a process of the app takes for so many messages. Where messages are lost, early or foreign,
// that is an error.
func (r *run) play(ctx context.Context, side sideName, messages int) (took time.Duration, err error) {
	server, err := r.start(ctx)
	if err != nil {
		return 0, err
	}
	defer server.Stop()
	w := worker{Backend: r.name, Server: server.URL, Side: side}
	if r.Profiles != "" {
		w.Profile = filepath.Join(r.Profiles, r.question+"-"+string(side)+".pprof")
	}
	if r.prepare != nil {
		if err := r.prepare(server.URL, topic); err != nil {
			return 0, fmt.Errorf("cannot create the topic: %w", err)
		}
	}
	if err := r.fill(server.URL, messages); err != nil {
		return 0, fmt.Errorf("cannot publish the messages: %w", err)
	}
	l := newLedger(messages)
	process, err := child.StartReady("worker", w, l.read)
	if err != nil {
		return 0, err
	}
	defer process.Kill()
	ended := make(chan error, 1)
	go func() {
		<-process.Ended
		ended <- process.Err
	}()
	began := time.Now()
	if _, err := io.WriteString(process.Input, "\n"); err != nil {
		return 0, err
	}
	if err := l.Wait(0, ended); err != nil {
		return 0, fmt.Errorf("%s: %w", side, err)
	}
	if err := process.Finish(); err != nil {
		return 0, fmt.Errorf("%s: a process of the app did not end well: %w", side, err)
	}
	took, err = l.took(began)
	if err != nil {
		err = fmt.Errorf("%s: %w", side, err)
	}
	return took, err
}

// pubSub opens the backend as the conformance suite does, with Watermill's own publisher.
func (b backend) pubSub(address string) (pubsub.Backend, error) {
	return pubsub.Open(b.name, address, logger())
}

// payload has 512 bytes.
var payload = make([]byte, 512)

// fill publishes the messages. Their identities are their numbers.
func (r *run) fill(address string, messages int) error {
	const publishers, batch = 8, 100
	opened, err := r.pubSub(address)
	if err != nil {
		return err
	}
	publisher, err := opened.Publisher()
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

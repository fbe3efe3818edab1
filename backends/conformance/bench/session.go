package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backends/conformance/process"
	"github.com/tieredretry/watermill-retry/backends/conformance/pubsub"
	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
	"github.com/tieredretry/watermill-retry/backends/conformance/servers"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

const (
	topic = "orders"
	tier  = time.Second      // how long a message waits that fails
	tick  = time.Millisecond // how early a message may be: servers count in milliseconds
)

var errMeasured = errors.New("this call is to fail")

// A side is who retries. It adds the handlers of an app on a server, whose end is closed when the router has ended.
type side struct {
	name string
	add  func(b backend, server string, router *message.Router, l *claims.Ledger) (end io.Closer, err error)
}

var sides = []side{{"library", addLibrary}, {"by hand", addHand}}

// measureRate measures how many messages a second fail, wait for one second and come back, with 16 in flight. The time
// is that until the last one is back, with its wait of a second.
func measureRate(ctx context.Context, r *run) error {
	messages := r.Size(20_000, 200)
	rates, err := r.Compare(r.question+", retries a second, the wait included", 3, []string{sides[0].name, sides[1].name},
		func(i int) (float64, error) {
			took, err := r.play(ctx, sides[i], messages)
			return float64(messages) / took.Seconds(), err
		})
	if err == nil {
		r.Ratio("backend_rate", r.name, rates[0], rates[1])
	}
	return err
}

// start starts a server for one measurement.
func (b backend) start(ctx context.Context) (*servers.Server, error) {
	entry, err := registry.Find(b.name)
	if err != nil {
		return nil, err
	}
	return entry.Start(ctx)
}

// play measures how long an app takes for so many messages. Where messages are lost, early or foreign, that is an
// error.
func (r *run) play(ctx context.Context, s side, messages int) (took time.Duration, err error) {
	server, err := r.start(ctx)
	if err != nil {
		return 0, err
	}
	defer server.Stop()
	if r.prepare != nil {
		if err := r.prepare(server.URL, topic); err != nil {
			return 0, fmt.Errorf("cannot create the topic: %w", err)
		}
	}
	if err := r.fill(server.URL, messages); err != nil {
		return 0, fmt.Errorf("cannot publish the messages: %w", err)
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 30 * time.Second}, logger())
	if err != nil {
		return 0, err
	}
	least := func(delay time.Duration) time.Duration { return delay - tick }
	l := claims.NewLedger(messages, claims.Always(tier), least)
	end, err := s.add(r.backend, server.URL, router, l)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", s.name, err)
	}
	ended, err := process.Serve(ctx, router)
	if err != nil {
		return 0, errors.Join(err, end.Close())
	}
	profile := r.Profiles
	if profile != "" {
		profile = filepath.Join(profile, r.question+"-"+s.name+".pprof")
	}
	took, err = l.Race(profile)
	if err = errors.Join(err, router.Close(), <-ended, end.Close()); err != nil {
		err = fmt.Errorf("%s: %w", s.name, err)
	}
	return took, err
}

// addLibrary is the library.
func addLibrary(b backend, server string, router *message.Router, l *claims.Ledger) (io.Closer, error) {
	opened, err := b.pubSub(server)
	if err != nil {
		return nil, err
	}
	retries, err := opened.Connect(pubsub.App{
		Group: group, Prefix: "retry", Policy: retry.Policy{Schedule: backoff.Schedule{tier}},
	})
	if err != nil {
		return nil, err
	}
	retries.AddConsumerHandler(router, "billing", topic, func(msg *message.Message) error {
		record, _ := retry.ReadRecord(msg.Metadata)
		if l.Handle(msg.UUID, record.Failures) {
			return errMeasured
		}
		return nil
	})
	return retries, nil
}

// pubSub opens the backend as the conformance suite does, with Watermill's own publisher.
func (b backend) pubSub(address string) (pubsub.Backend, error) {
	return pubsub.Open(b.name, address, logger())
}

// fill publishes the messages.
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
				all = append(all, message.NewMessage(claims.ID(i), make([]byte, 512)))
			}
			if err := publisher.Publish(topic, all...); err != nil {
				return err
			}
		}
		return nil
	})
	return errors.Join(err, publisher.Close())
}

func logger() watermill.LoggerAdapter {
	if os.Getenv("BENCH_LOG") != "" {
		return watermill.NewStdLogger(false, false)
	}
	return watermill.NopLogger{}
}

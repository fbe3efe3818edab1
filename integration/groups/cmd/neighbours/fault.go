package main

import (
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/config"
)

const (
	goodQueues = 10               // half of them are classic queues, which have an inbox
	patience   = 30 * time.Second // without progress for so long, messages are stopped
	// retried is after how long at the latest the broker offers refused messages again.
	retried = 6*time.Minute + 30*time.Second
)

// A fault makes one work queue of a group take no messages.
type fault struct {
	name      string
	arguments amqp091.Table
	deleted   bool
	target    time.Duration // of the good messages' lateness at the 99th percentile
}

func full(kind string) amqp091.Table {
	return amqp091.Table{"x-queue-type": kind, "x-max-length": int64(10), "x-overflow": "reject-publish"}
}

var faults = []fault{
	{"neighbours_deleted", nil, true, time.Second},
	{"neighbours_full_quorum", full("quorum"), false, 2 * time.Second},
	{"neighbours_full_classic", full("classic"), false, 2 * time.Second},
}

// measure lets as many bad messages as good ones wait on one tier, one after the other.
func (f fault) measure(broker node, settings settings) ([]string, error) {
	s := newShop()
	bad := s.queue("bad")
	quorum, classic := s.goodQueues()
	defer s.remove(broker.uri, append(append(quorum, classic...), bad)...)
	err := with(broker.uri, func(channel *amqp091.Channel) error {
		builder, err := config.NewBuilder(s.config(broker.uri, f.arguments))
		if err != nil {
			return err
		}
		if err := builder.Topology(bad).Declare(channel); err != nil || !f.deleted {
			return err
		}
		_, err = channel.QueueDelete(bad, false, false, false)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, queues := range []struct {
		names     []string
		arguments amqp091.Table
	}{{quorum, nil}, {classic, amqp091.Table{"x-queue-type": "classic"}}} {
		_, stop, err := s.consume(broker.uri, queues.arguments, queues.names...)
		if err != nil {
			return nil, err
		}
		defer stop()
	}
	if err := s.publish(broker.uri, settings.messages, append(quorum, classic...), bad); err != nil {
		return nil, err
	}
	lateness, lost, twice := s.wait(patience, isGood)
	if lost > 0 {
		return nil, fmt.Errorf("%d of %d good messages did not come within %v", lost, settings.messages, patience)
	}
	claims := []string{late(f.name, broker.name, lateness, f.target)}
	switch {
	case f.deleted:
		err = s.countOrphans(broker.uri, settings.messages)
	case settings.relief:
		err = s.relieve(broker.uri, f.arguments, bad)
	}
	fmt.Printf("%s@%s: %d good ones came twice\n", f.name, broker.name, twice)
	return claims, err
}

func (s *shop) goodQueues() (quorum, classic []string) {
	for i := range goodQueues / 2 {
		quorum, classic = append(quorum, s.queue(fmt.Sprintf("good-q%d", i))), append(classic, s.queue(fmt.Sprintf("good-c%d", i)))
	}
	return quorum, classic
}

// publish publishes good messages to their work queues, where they fail, and copies of bad messages to the tier.
func (s *shop) publish(uri string, messages int, good []string, bad string) error {
	return with(uri, func(channel *amqp091.Channel) error {
		var confirms []*amqp091.DeferredConfirmation
		send := func(exchange, key, queue, id string, due time.Time) error {
			s.expect(id, queue, due)
			confirm, err := channel.PublishWithDeferredConfirm(exchange, key, true, false, amqp091.Publishing{
				DeliveryMode: amqp091.Persistent, Headers: amqp091.Table{"_watermill_message_uuid": id}, Body: make([]byte, 256),
			})
			confirms = append(confirms, confirm)
			return err
		}
		for i := range messages {
			queue := good[i%len(good)]
			if err := send("", queue, queue, fmt.Sprintf("good-%d", i), time.Time{}); err != nil {
				return err
			}
			if err := send(s.name+"."+s.name, "5s."+bad, bad, fmt.Sprintf("bad-%d", i), time.Now().Add(tier)); err != nil {
				return err
			}
		}
		for _, confirm := range confirms {
			if !confirm.Wait() {
				return fmt.Errorf("the broker refused a message")
			}
		}
		return nil
	})
}

// countOrphans counts the messages of the work queue that is gone, by identity.
func (s *shop) countOrphans(uri string, messages int) error {
	return with(uri, func(channel *amqp091.Channel) error {
		orphans := map[string]bool{}
		for deadline := time.Now().Add(patience); len(orphans) < messages; {
			d, ok, err := channel.Get(s.name+".orphans", true)
			if err != nil {
				return err
			}
			if !ok {
				if time.Now().After(deadline) {
					return fmt.Errorf("lost=%d of %d bad messages: they are no orphans", messages-len(orphans), messages)
				}
				time.Sleep(50 * time.Millisecond)
				continue
			}
			orphans[d.Headers["_watermill_message_uuid"].(string)] = true
		}
		return nil
	})
}

// relieve consumes the full work queue.
func (s *shop) relieve(uri string, arguments amqp091.Table, bad string) error {
	began := time.Now()
	_, stop, err := s.consume(uri, arguments, bad)
	if err != nil {
		return err
	}
	defer stop()
	lateness, lost, twice := s.wait(retried, isBad)
	fmt.Printf("relief: %d bad messages came back within %v, lost=%d twice=%d\n", len(lateness), time.Since(began).Round(time.Second), lost, twice)
	if lost > 0 {
		return fmt.Errorf("lost=%d bad messages", lost)
	}
	return nil
}

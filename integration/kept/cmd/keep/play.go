package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	watermillmw "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/integration/kept"
	"github.com/tieredretry/watermill-retry/letters"
)

// play brings about all states, one after the other.
func (s *scene) play() error {
	if err := s.channel.Confirm(false); err != nil {
		return err
	}
	for _, step := range []func() error{
		s.declared, s.exchange, s.orphans, s.former, s.waiting, s.returned,
		s.dead, s.byParts, s.byBroker, s.foreign, s.collect,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// with runs apps while the scene goes on.
func (s *scene) with(apps kept.Apps, run func() error) error {
	stop, err := kept.Start(s.uri, apps, s.handle, weighing{})
	if err != nil {
		return err
	}
	return errors.Join(run(), stop())
}

func (s *scene) host() string {
	parsed, _ := url.Parse(s.uri)
	return strings.TrimPrefix(parsed.Path, "/")
}

func (s *scene) declared() (err error) {
	if err = s.with(kept.Present, func() error { return nil }); err == nil {
		s.file.Expected.Declared, err = kept.Declared(s.client, s.host())
	}
	return err
}

// exchange binds the work queue orders to an exchange of a publisher.
func (s *scene) exchange() error {
	return errors.Join(
		s.channel.ExchangeDeclare("sales", amqp091.ExchangeTopic, true, false, false, false, nil),
		s.channel.QueueBind("orders", "eu.#", "sales", false, nil),
	)
}

// orphans waits in own tiers, in those of a group, and behind an inbox, while the work queues are deleted. One has
// lost its key.
func (s *scene) orphans() error {
	err := s.with(kept.Gone, func() error {
		err := s.send(
			letter{queue: "gone", id: "orphan of own tiers", do: "after 3s"},
			letter{queue: "lost", id: "orphan of a group", do: "after 3s"},
			letter{queue: "left", id: "orphan behind an inbox", do: "after 3s"},
		)
		return errors.Join(err, s.depth("gone.retry.3s", 1), s.depth("shop.retry.3s", 2))
	})
	if err != nil {
		return err
	}
	for _, queue := range []string{"gone", "lost", "left"} {
		if _, err := s.channel.QueueDelete(queue, false, false, false); err != nil {
			return err
		}
	}
	lost := letter{queue: "retry.orphans", id: "orphan without its key"}
	return errors.Join(s.depth("retry.orphans", 3), s.send(lost))
}

// former leaves messages on tiers that the present schedules do not have.
func (s *scene) former() error {
	return s.with(kept.Former, func() error {
		return errors.Join(
			s.send(
				letter{queue: "orders", id: "former own tier", do: "fail"},
				letter{queue: "stock", id: "former tier of a group", do: "fail"},
			),
			s.take("waits on a tier of a former schedule", "orders.retry.7m", "shop.retry.7m"),
		)
	})
}

// waiting has messages on all kinds of tiers.
func (s *scene) waiting() error {
	return s.with(kept.Present, func() error {
		return errors.Join(s.third(), s.second(), s.first(), s.lanes(), s.requested())
	})
}

// works are the work queues whose messages wait on each tier, with the group of their tiers.
var works = map[string]string{
	"orders": "orders", "mails": "mails", "stock": "shop", "audit": "shop", "logs": "logs", "parts": "parts",
	"returns": "returns", "events_billing": "events_billing",
}

// each sends a message to each work queue, and keeps it on a tier.
func (s *scene) each(nth, tier, later string) error {
	var tiers []string
	for queue, group := range works {
		if err := s.send(letter{queue: queue, id: nth + " of " + queue, do: "fail " + nth, later: later}); err != nil {
			return err
		}
		tiers = append(tiers, group+".retry."+tier)
	}
	state := "waits after its " + nth + " failure"
	for len(tiers) > 0 { // the work queues of a group have the same tier
		var once, again []string
		for _, tier := range tiers {
			if slices.Contains(once, tier) {
				again = append(again, tier)
			} else {
				once = append(once, tier)
			}
		}
		if err := s.take(state, once...); err != nil {
			return err
		}
		tiers = again
	}
	return nil
}

func (s *scene) third() error  { return s.each("third", "1h", "") }
func (s *scene) second() error { return s.each("second", "3s", "die") }

func (s *scene) first() error {
	err := s.send(letter{queue: "orders", id: "typed and waits", do: "fail", later: "die", change: typed})
	err = errors.Join(err, s.take("waits with all properties", "orders.retry.2s"))
	sold := letter{exchange: "sales", queue: "eu.1", id: "sold and waits", do: "fail", later: "die"}
	err = errors.Join(err, s.send(sold), s.take("waits, from an exchange", "orders.retry.2s"))
	return errors.Join(err, s.each("first", "2s", "retry 2"))
}

// lanes has a message on each lane of a delay with jitter.
func (s *scene) lanes() error {
	missing := map[string]bool{}
	for _, q := range s.file.Expected.Declared.Queues {
		if strings.HasPrefix(q.Name, "prices.retry.") && q.Name != "prices.retry.10m" {
			missing[q.Name] = true
		}
	}
	for i := 0; len(missing) > 0; i++ {
		if err := s.send(letter{queue: "prices", id: fmt.Sprint("lane ", i), do: "fail"}); err != nil {
			return err
		}
		err := until("a message on a lane", func() (bool, error) {
			for _, q := range s.file.Expected.Declared.Queues {
				if !strings.HasPrefix(q.Name, "prices.retry.") {
					continue
				}
				d, found, err := s.channel.Get(q.Name, true)
				if found && missing[q.Name] {
					s.keep(&d, q.Name, "waits on a lane of a jitter")
					delete(missing, q.Name)
				}
				if err != nil || found {
					return found, err
				}
			}
			return false, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// requested has delays that no schedule has.
func (s *scene) requested() error {
	delayed := func(p *amqp091.Publishing) {
		p.Headers["_watermill_delayed_for"] = "1h0m2s"
		p.Headers["_watermill_delayed_until"] = time.Now().Add(time.Hour + 2*time.Second).UTC().Format(time.RFC3339)
	}
	return errors.Join(
		s.send(letter{queue: "orders", id: "requested delay", do: "after 1h0m2s"}),
		s.take("has a requested delay", "orders.retry.1h"),
		s.send(letter{queue: "orders", id: "requested rounds", do: "after 2h", later: "wait"}),
		s.take("has a requested delay of two rounds", "orders.retry.1h"),
		s.send(letter{queue: "orders", id: "delayed arrival", change: delayed}),
		s.take("is delayed before its first try", "orders.retry.1h"),
		s.send(letter{queue: "orders", id: "extra tier", do: "after 10m"}),
		s.take("waits on an extra tier", "orders.retry.10m"),
		s.send(letter{queue: "orders", id: "snoozed", do: "busy"}),
		s.take("is snoozed", "orders.retry.3s"),
		s.send(letter{queue: "orders", id: "parked", do: "after 5s"}),
		s.take("is parked", "orders.retry.2s"),
	)
}

// returned has messages that are back on their work queue, while no app consumes.
func (s *scene) returned() error {
	err := s.with(kept.Present, func() error {
		for queue := range works {
			if err := s.send(letter{queue: queue, id: "returned to " + queue, do: "fail"}); err != nil {
				return err
			}
		}
		for queue := range works {
			id := "returned to " + queue
			if err := until(id, func() (bool, error) { return s.called(id) == 2, nil }); err != nil {
				return err
			}
		}
		err := s.send(letter{queue: "orders", id: "given back", do: "restart"})
		return errors.Join(err, until("it is given back", func() (bool, error) {
			return s.called("given back") >= 1, nil
		}))
	})
	for queue := range works {
		n := 1
		if queue == "orders" {
			n = 2
		}
		const state = "is on its work queue: back from its second retry, or given back"
		err = errors.Join(err, s.depth(queue, n), s.empty(queue, state))
	}
	return err
}

// dead has letters of the middleware.
func (s *scene) dead() error {
	return s.with(kept.Present, func() error {
		mark := func(key string) func(*amqp091.Publishing) {
			return func(p *amqp091.Publishing) { p.Headers[key] = "yes" }
		}
		err := s.send(
			letter{queue: "prices", id: "retries used up", do: "fail"},
			letter{queue: "quotes", id: "expired by age", do: "fail"},
			letter{queue: "scans", id: "unreadable"},
			letter{queue: "orders", id: "permanent", do: "permanent 7"},
			letter{queue: "orders", id: "permanent, too", do: "permanent 8", later: "retry 1"},
			letter{queue: "orders", id: "rule", do: "account", later: "die"},
			letter{queue: "orders", id: "typed and dead", do: "permanent 9", later: "die", change: typed},
			letter{exchange: "sales", queue: "eu.2", id: "sold and dead", do: "permanent 19", later: "die"},
			letter{queue: "orders", id: "last form", do: "permanent 10", change: mark("weigh")},
			letter{queue: "orders", id: "raw", do: "permanent 11", change: mark("unwritable")},
			letter{queue: "prices", id: "panic", do: "panic"},
			letter{queue: "mails", id: "dead of a classic queue", do: "permanent 12"},
			letter{queue: "stock", id: "dead of a group", do: "permanent 13"},
			letter{queue: "audit", id: "dead behind an inbox", do: "permanent 14"},
			letter{queue: "logs", id: "dead of classic tiers", do: "permanent 15"},
			letter{queue: "returns", id: "dead of v3", do: "permanent 16"},
			letter{queue: "events_billing", id: "dead of a consumer group", do: "permanent 17"},
			letter{queue: "events_search", id: "dead of another consumer group", do: "permanent 18"},
		)
		if err = errors.Join(err, s.annotated("annotated"), s.depth("orders.dead", 8), s.again()); err != nil {
			return err
		}
		for queue, n := range map[string]int{
			"prices.dead": 2, "quotes.dead": 1, "scans.dead": 1, "mails.dead": 1, "stock.dead": 1,
			"audit.dead": 1, "logs.dead": 1, "returns.dead": 1, "events_billing.dead": 1, "events_search.dead": 1,
		} {
			err = errors.Join(err, s.depth(queue, n))
		}
		return err
	})
}

// again redrives a letter, which dies again.
func (s *scene) again() error {
	store, err := kept.Store(s.uri)
	if err != nil {
		return err
	}
	only := letters.Filter{IDs: []string{"uuid of permanent"}}
	options := letters.Redrive{Filter: only, By: "ann@ops", Note: "the bank is back"}
	_, err = store.Redrive(context.Background(), "orders.dead", options)
	died := until("it dies again", func() (bool, error) { return s.called("permanent") == 2, nil })
	return errors.Join(err, died, s.depth("orders.dead", 8), store.Close())
}

// byParts has letters of an app over watermill-amqp's subscriber.
func (s *scene) byParts() error {
	builder, err := config.NewBuilder(kept.Parts(s.uri, weighing{}))
	if err != nil {
		return err
	}
	retry, err := builder.NewTieredRetry(nil)
	if err != nil {
		return err
	}
	subscriber, err := amqp2.NewSubscriber(builder.SubscriberConfig(), watermill.NopLogger{})
	if err != nil {
		return errors.Join(err, builder.Close())
	}
	router := message.NewDefaultRouter(nil)
	handle := func(m *message.Message) error { return s.handle("parts", m) }
	router.AddConsumerHandler("parts", "parts", subscriber, handle).AddMiddleware(retry.Middleware)
	done := make(chan error, 1)
	go func() { done <- router.Run(context.Background()) }()
	unwritable := func(p *amqp091.Publishing) { p.Headers["unwritable"] = "yes" }
	err = errors.Join(
		s.send(letter{queue: "parts", id: "waits of the parts", do: "fail"}), s.take("waits, of the parts",
			"parts.retry.2s"),
		s.send(
			letter{queue: "parts", id: "dead of the parts", do: "permanent 20"},
			letter{queue: "parts", id: "raw of the parts", do: "permanent 21", change: unwritable},
		),
		s.depth("parts.dead", 2),
	)
	return errors.Join(err, router.Close(), <-done, builder.Close())
}

// byBroker has letters that the broker itself gives up, one of them with the folded record of its retries.
func (s *scene) byBroker() error {
	err := s.with(kept.Present, func() error {
		err := s.send(letter{queue: "orders", id: "rejected after a retry", do: "fail"})
		return errors.Join(err, s.depth("orders.retry.2s", 1))
	})
	if err = errors.Join(err, s.depth("orders", 1), s.reject("orders")); err != nil {
		return err
	}
	if err := s.send(letter{queue: "orders", id: "delivery limit"}); err != nil {
		return err
	}
	err = until("the delivery limit", func() (bool, error) {
		d, found, err := s.channel.Get("orders", false)
		if err == nil && found {
			err = d.Reject(true)
		}
		if err != nil || found {
			return false, err
		}
		state, err := s.channel.QueueDeclarePassive("orders.dead", true, false, false, false, nil)
		return state.Messages >= 10, err
	})
	expires := func(p *amqp091.Publishing) { p.Expiration = "1" }
	return errors.Join(
		err, s.send(letter{queue: "orders", id: "expired in its work queue", change: expires}), s.depth("orders.dead",
			11),
		s.send(letter{queue: "stock", id: "rejected"}), s.reject("stock"), s.depth("stock.dead", 2),
	)
}

// reject rejects the next message of a queue for good.
func (s *scene) reject(queue string) error {
	d, found, err := s.channel.Get(queue, false)
	if err == nil && !found {
		err = fmt.Errorf("%s is empty", queue)
	}
	if err != nil {
		return err
	}
	return d.Reject(false)
}

// foreign has letters that the library has not written.
func (s *scene) foreign() error {
	quorum := amqp091.Table{"x-queue-type": "quorum"}
	for _, queue := range []string{"poisoned", "parked"} {
		if _, err := s.channel.QueueDeclare(queue, true, false, false, false, quorum); err != nil {
			return err
		}
	}
	publisher, err := amqp2.NewPublisher(amqp2.NewDurableQueueConfig(s.uri), watermill.NopLogger{})
	if err != nil {
		return err
	}
	poison, err := watermillmw.PoisonQueue(publisher, "poisoned")
	if err != nil {
		return err
	}
	local := gochannel.NewGoChannel(gochannel.Config{}, nil)
	router := message.NewDefaultRouter(nil)
	fail := func(*message.Message) error { return kept.ErrDown }
	router.AddConsumerHandler("billing", "orders", local, fail).AddMiddleware(poison)
	done := make(chan error, 1)
	go func() { done <- router.Run(context.Background()) }()
	<-router.Running()
	msg := message.NewMessage("uuid of poisoned", []byte("poisoned"))
	msg.Metadata["trace"] = "abc"
	err = errors.Join(local.Publish("orders", msg), s.depth("poisoned", 1), router.Close(), <-done, publisher.Close())
	named := func(p *amqp091.Publishing) { p.MessageId, p.Headers, p.Priority = "m-2", nil, 3 }
	nameless := func(p *amqp091.Publishing) { p.Headers = amqp091.Table{"typed": int32(1)} }
	return errors.Join(err, s.send(
		letter{queue: "parked", id: "without a record", change: named},
		letter{queue: "parked", id: "without any id", change: nameless},
	), s.depth("parked", 2))
}

// collect lists and takes all letters.
func (s *scene) collect() error {
	all, err := kept.Declared(s.client, s.host())
	if err != nil {
		return err
	}
	s.file.Former = all.Without(s.file.Expected.Declared)
	store, err := kept.Store(s.uri)
	if err != nil {
		return err
	}
	defer store.Close()
	var queues []string
	for _, q := range all.Queues {
		state, err := s.channel.QueueDeclarePassive(q.Name, true, false, false, false, nil)
		switch {
		case err != nil:
			return err
		case state.Messages > 0 && kept.HasLetters(q.Name):
			queues = append(queues, q.Name)
		case state.Messages > 0:
			return fmt.Errorf("%d messages are left in %s", state.Messages, q.Name)
		}
	}
	s.file.Expected.Letters, s.file.Expected.Causes, err = kept.Look(context.Background(), store, queues, time.Time{})
	for _, queue := range queues {
		err = errors.Join(err, s.empty(queue, "is dead, or an orphan"))
	}
	s.file.KeptAt = time.Now().UTC().Truncate(time.Second)
	return err
}

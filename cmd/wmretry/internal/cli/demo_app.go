package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	poison "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

const (
	demoKey     = "demo"      // metadata: what the handler does with the message
	demoHandler = "ship"      // of the work queue
	closeWithin = time.Minute // of a router
)

// What the handler does with a message.
const (
	demoDown      = "down"      // its dependency is down, until it is back
	demoBusy      = "busy"      // another dependency answers 503, until it does not
	demoPermanent = "permanent" // no retry can help
	demoHostile   = "hostile"   // the reason has control characters and a script
)

// builder is the configuration of the demo's app.
func (d *demo) builder() config.BuilderConfig {
	app := amqp.NewDurableQueueConfig(d.config.URI)
	app.Connection.TLSConfig = d.config.TLS
	return config.BuilderConfig{AMQP: app, Schedule: demoSchedule, Settings: rabbitmq.Settings{Prefix: d.own}}
}

// app runs a handler until the function returns. A nil handler handles nothing.
func (d *demo) app(ctx context.Context, queue, name string, schedule backoff.Schedule, handler message.NoPublishHandlerFunc, until func(*config.Connection) error) error {
	logger := d.logger()
	rabbit, err := config.Connect(d.builder(), logger)
	if err != nil {
		return err
	}
	defer func() { _ = rabbit.Close() }()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: closeWithin}, logger)
	if err != nil {
		return err
	}
	rabbit.AddConsumerHandler(router, name, queue, handler, middleware.HandlerOptions{Schedule: schedule, Concurrency: 64})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	select {
	case <-router.Running():
	case err := <-ended:
		return fmt.Errorf("the app of the demo does not start: %w", err)
	}
	err = until(rabbit)
	cancel()
	return errors.Join(err, <-ended)
}

// handle lets a handler fail until its letters are there.
func (d *demo) handle(ctx context.Context, letters int, await func() error) error {
	return d.app(ctx, d.work, demoHandler, nil, func(msg *message.Message) error { return demoFailure(msg, true) }, func(rabbit *config.Connection) error {
		for i := range letters {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := d.publish(ctx, rabbit, i); err != nil {
				return err
			}
		}
		return await()
	})
}

// publish publishes one message of the app: some by the library, and some with headers and properties that only AMQP has.
func (d *demo) publish(ctx context.Context, rabbit *config.Connection, i int) error {
	does := []string{demoDown, demoDown, demoBusy, demoDown, demoPermanent, demoBusy, demoDown, demoPermanent, demoHostile, demoDown}[i%10]
	body := fmt.Sprintf(`{"order":%d,"customer":%d,"total":"%d.50 EUR"}`, 1000+i, i%7, 10+i%90)
	if i%5 == 3 {
		return d.publishTyped(ctx, i, does)
	}
	msg := message.NewMessage(watermill.NewUUID(), []byte(body))
	msg.Metadata = message.Metadata{
		demoKey: does, "customer": strconv.Itoa(i % 7), "traceparent": fmt.Sprintf("00-%032x-%016x-01", i+1, i+1),
	}
	return rabbit.Publisher().Publish(d.work, msg)
}

// publishTyped publishes a message of another client, with headers of many types.
func (d *demo) publishTyped(ctx context.Context, i int, does string) error {
	body, contentType := []byte("a line of text\nand another one\n"), "text/plain"
	if i%2 == 0 {
		body, contentType = []byte{0, 1, 2, 0xfe, 0xff, byte(i)}, "application/octet-stream"
	}
	return d.put(ctx, d.work, amqp091.Publishing{
		ContentType: contentType, CorrelationId: "order-" + strconv.Itoa(i), AppId: "legacy-shop",
		Type: "order.created", Timestamp: time.Now().Add(-time.Hour).Truncate(time.Second), Body: body,
		Headers: amqp091.Table{
			"_watermill_message_uuid": watermill.NewUUID(), demoKey: does, "customer": strconv.Itoa(i % 7),
			"attempts": int32(i), "size": int64(i) << 40, "weight": 1.5, "express": i%2 == 0, "picture": []byte{0xca, 0xfe},
			"ordered_at": time.Now().Add(-2 * time.Hour).Truncate(time.Second), "items": []any{"book", int32(2)},
			"address": amqp091.Table{"city": "Köln", "number": int32(4)}, "nothing": nil,
		},
	})
}

// demoFailure is the handler. Its errors differ in numbers and ids, so that there is something to group.
func demoFailure(msg *message.Message, broken bool) error {
	switch msg.Metadata[demoKey] {
	case demoDown:
		if broken {
			n := len(msg.UUID) + int(msg.UUID[0])
			return fmt.Errorf("save order: %w", &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, byte(n)), Port: 5432}, Err: syscall.ECONNREFUSED})
		}
	case demoBusy:
		if broken {
			return fmt.Errorf("payment: 503 Service Unavailable (request %s, after %dms)", watermill.NewUUID(), len(msg.Payload)*7)
		}
	case demoPermanent:
		return backoff.Permanent(fmt.Errorf("customer %s does not exist", msg.Metadata["customer"]))
	case demoHostile:
		return backoff.Permanent(errors.New("bad \x1b[31mcolour\x1b[0m \x1b]0;title\a\u202e <script>alert(1)</script>"))
	}
	return nil
}

// run runs the handler until the context ends.
func (d *demo) run(ctx context.Context, broken bool) error {
	var handled, failed atomic.Int64
	state := "the dependency is back"
	if broken {
		state = "the dependency is still down"
	}
	_, _ = fmt.Fprintf(d.stderr, "the handler of %s runs until Ctrl-C: %s\n", safe(d.work), state)
	err := d.app(ctx, d.work, demoHandler, nil, func(msg *message.Message) error {
		err := demoFailure(msg, broken)
		if err != nil {
			failed.Add(1)
		} else {
			handled.Add(1)
		}
		return err
	}, func(*config.Connection) error {
		<-ctx.Done()
		return nil
	})
	_, _ = fmt.Fprintf(d.stdout, "%s handled, %s\n", plural(int(handled.Load()), "message", "messages"), plural(int(failed.Load()), "failure", "failures"))
	return err
}

// limit makes letters of the broker: each message is rejected until it is beyond the delivery limit of the work queue.
func (d *demo) limit(ctx context.Context, letters int) error {
	before, err := d.count(d.dead)
	if err != nil {
		return err
	}
	for i := range letters {
		err := d.put(ctx, d.work, amqp091.Publishing{
			ContentType: "application/json", Body: fmt.Appendf(nil, `{"order":%d,"crashes":true}`, 9000+i),
			Headers: amqp091.Table{"_watermill_message_uuid": watermill.NewUUID(), "customer": "9"},
		})
		if err != nil {
			return err
		}
	}
	return d.await(ctx, d.dead, before+letters, func(int) error {
		for ctx.Err() == nil {
			delivery, found, err := d.channel.Get(d.work, false)
			if err != nil || !found {
				return err
			}
			if err := delivery.Reject(true); err != nil {
				return err
			}
		}
		return nil
	})
}

// poison makes letters with Watermill's PoisonQueue.
func (d *demo) poison(ctx context.Context, letters int) error {
	queue, err := poison.PoisonQueue(demoPublisher{ctx, d}, d.dead)
	if err != nil {
		return err
	}
	failing := queue(func(msg *message.Message) ([]*message.Message, error) {
		return nil, fmt.Errorf("template %q is not there", "invoice-"+msg.UUID[:8])
	})
	for range letters {
		if _, err := failing(message.NewMessage(watermill.NewUUID(), []byte("Dear customer,\n"))); err != nil {
			return err
		}
	}
	return nil
}

// demoPublisher publishes to the queue with the name of the topic.
type demoPublisher struct {
	ctx context.Context //nolint:containedctx // message.Publisher has none
	*demo
}

func (p demoPublisher) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		publishing, err := amqp.DefaultMarshaler{}.Marshal(msg)
		if err != nil {
			return err
		}
		if err := p.put(p.ctx, topic, publishing); err != nil {
			return err
		}
	}
	return nil
}

func (demoPublisher) Close() error { return nil }

// unknown makes letters without any record.
func (d *demo) unknown(ctx context.Context, letters int) error {
	for range letters {
		if err := d.put(ctx, d.dead, amqp091.Publishing{MessageId: watermill.NewUUID(), Body: []byte("put here by hand")}); err != nil {
			return err
		}
	}
	return nil
}

// orphan lets a message wait on a tier, and deletes its work queue meanwhile.
func (d *demo) orphan(ctx context.Context) error {
	failed := make(chan struct{}, 1)
	err := d.app(ctx, d.gone(), "bill", backoff.Schedule{goneDelay}, func(*message.Message) error {
		select {
		case failed <- struct{}{}:
		default:
		}
		return errors.New("the tax office does not answer")
	}, func(rabbit *config.Connection) error {
		if err := rabbit.Publisher().Publish(d.gone(), message.NewMessage(watermill.NewUUID(), []byte(`{"invoice":77}`))); err != nil {
			return err
		}
		select {
		case <-failed:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if err != nil {
		return err
	}
	_, err = d.channel.QueueDelete(d.gone(), false, false, false)
	return err
}

// clean removes what the demo has declared.
func (d *demo) clean() error {
	builder, err := config.NewBuilder(d.builder())
	if err != nil {
		return err
	}
	gone := d.builder()
	gone.Schedule = backoff.Schedule{goneDelay}
	goneBuilder, err := config.NewBuilder(gone)
	if err != nil {
		return err
	}
	messages := 0
	for _, t := range []topology.Topology{builder.Topology(d.work), goneBuilder.Topology(d.gone())} {
		for _, queue := range append(t.Queues, t.WorkQueue) {
			count, err := d.count(queue.Name)
			if err != nil {
				return err
			}
			messages += count
			if _, err := d.channel.QueueDelete(queue.Name, false, false, false); err != nil {
				return fmt.Errorf("cannot remove the queue %s: %w", safe(queue.Name), err)
			}
		}
		for _, exchange := range t.Exchanges {
			if err := d.channel.ExchangeDelete(exchange.Name, false, false); err != nil {
				return fmt.Errorf("cannot remove the exchange %s: %w", safe(exchange.Name), err)
			}
		}
	}
	_, err = fmt.Fprintf(d.stdout, "the demo is removed, with %s\n", plural(messages, "message", "messages"))
	return err
}

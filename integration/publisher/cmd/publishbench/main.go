// Command publishbench measures the publisher against the alternatives, on the broker at AMQP_URL: persistent 512-byte
// messages to one durable queue. It measures both sides of a comparison in turn, pair by pair, and compares the medians
// of the pairs' ratios, because the absolute figures of a shared machine drift.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// A contender publishes one message, and waits until it is routed and confirmed. All callers call it at once.
type contender struct {
	publish func() error
	close   func() error
}

type setup func(uri, queue string, callers int) (contender, error)

type comparison struct {
	name    string
	against setup
	callers int
	target  float64
}

var payload = make([]byte, 512)

func main() {
	pairs := flag.Int("pairs", 15, "alternating pairs per comparison")
	duration := flag.Duration("duration", time.Second, "length of one measurement")
	queueType := flag.String("queue", "classic", "classic or quorum")
	only := flag.String("only", "", "measure only the comparison with this name")
	flag.Parse()

	uri := os.Getenv("AMQP_URL")
	if uri == "" {
		fail(fmt.Errorf("AMQP_URL is not set"))
	}
	comparisons := []comparison{
		{"loop_16", loop, 16, 0.95},
		{"loop_64", loop, 64, 0.95},
		{"loop_256", loop, 256, 0.95},
		{"watermill_amqp_pool0_16", watermillAMQP(0), 16, 4},
		{"watermill_amqp_pool16_16", watermillAMQP(16), 16, 1.1},
	}
	fmt.Printf("messages/s, %s queue, %d pairs of %s\n\n", *queueType, *pairs, *duration)
	fmt.Printf("%-26s %29s %29s %26s\n", "against", "ours: median (quartiles)", "theirs: median (quartiles)", "ratio: median (min-max)")
	var claims []string
	for _, c := range comparisons {
		if *only != "" && *only != c.name {
			continue
		}
		ours, theirs, err := measurePairs(uri, *queueType, c, *pairs, *duration)
		fail(err)
		ratios := make([]float64, len(ours))
		for i := range ours {
			ratios[i] = ours[i] / theirs[i]
		}
		o, t, r := summarize(ours), summarize(theirs), summarize(ratios)
		fmt.Printf("%-26s %11.0f (%6.0f-%6.0f) %14.0f (%6.0f-%6.0f) %12.2f (%.2f-%.2f)\n",
			c.name, o.median, o.lower, o.upper, t.median, t.lower, t.upper, r.median, r.least, r.most)
		verdict := "ok"
		if r.median < c.target {
			verdict = "missed"
		}
		claims = append(claims, fmt.Sprintf("claim %s measured=%.2f target=%.2f %s", c.name, r.median, c.target, verdict))
	}
	fmt.Println()
	for _, claim := range claims {
		fmt.Println(claim)
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "publishbench:", err)
		os.Exit(1)
	}
}

// measurePairs measures the two sides in turns. Which side comes first changes with every pair.
func measurePairs(uri, queueType string, c comparison, pairs int, duration time.Duration) (ours, theirs []float64, err error) {
	for i := range pairs {
		turns := []struct {
			setup   setup
			results *[]float64
		}{{own, &ours}, {c.against, &theirs}}
		if i%2 == 1 {
			turns[0], turns[1] = turns[1], turns[0]
		}
		for _, turn := range turns {
			rate, err := measure(uri, queueType, turn.setup, c.callers, duration)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", c.name, err)
			}
			*turn.results = append(*turn.results, rate)
		}
	}
	return ours, theirs, nil
}

// measure uses a new queue: the messages of one measurement must not affect the next.
func measure(uri, queueType string, setup setup, callers int, duration time.Duration) (rate float64, err error) {
	connection, err := amqp091.Dial(uri)
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return 0, err
	}
	queue := "publishbench_" + watermill.NewShortUUID()
	if _, err := channel.QueueDeclare(queue, true, false, false, false, amqp091.Table{"x-queue-type": queueType}); err != nil {
		return 0, err
	}
	defer func() { _, _ = channel.QueueDelete(queue, false, false, false) }()

	contender, err := setup(uri, queue, callers)
	if err != nil {
		return 0, err
	}
	defer contender.close()
	if _, err := publishFor(contender, callers, duration/10); err != nil { // warm up
		return 0, err
	}
	begin := time.Now()
	published, err := publishFor(contender, callers, duration)
	return float64(published) / time.Since(begin).Seconds(), err
}

func publishFor(c contender, callers int, duration time.Duration) (published int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), duration)
	defer cancel()
	var total atomic.Int64
	var once sync.Once
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			var count int64
			for ctx.Err() == nil {
				if e := c.publish(); e != nil {
					once.Do(func() { err = e })
					cancel()
					break
				}
				count++
			}
			total.Add(count)
		})
	}
	group.Wait()
	return total.Load(), err
}

func newMessage() *message.Message {
	return message.NewMessage("6ba7b810-9dad-11d1-80b4-00c04fd430c8", payload)
}

func own(uri, queue string, _ int) (contender, error) {
	p, err := publisher.Open(publisher.Config{Wire: wire.Config{URI: uri}}, nil)
	if err != nil {
		return contender{}, err
	}
	publish := func() error {
		return p.SendOne(publisher.Message{Context: context.Background(), RoutingKey: queue, Publishing: amqp091.Publishing{
			Headers: amqp091.Table{publisher.UUIDHeader: "6ba7b810-9dad-11d1-80b4-00c04fd430c8"}, Body: payload,
		}})
	}
	return contender{publish: publish, close: p.Close}, nil
}

// loop is the loop that a developer would write by hand: one channel, deferred confirms. It does not detect unroutable messages.
func loop(uri, queue string, _ int) (contender, error) {
	connection, err := amqp091.Dial(uri)
	if err != nil {
		return contender{}, err
	}
	channel, err := connection.Channel()
	if err != nil {
		return contender{}, err
	}
	if err := channel.Confirm(false); err != nil {
		return contender{}, err
	}
	publish := func() error {
		ctx := context.Background()
		confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, amqp091.Publishing{
			DeliveryMode: amqp091.Persistent,
			Headers:      amqp091.Table{publisher.UUIDHeader: "6ba7b810-9dad-11d1-80b4-00c04fd430c8"},
			Body:         payload,
		})
		if err != nil {
			return err
		}
		if acked, err := confirm.WaitContext(ctx); err != nil || !acked {
			return fmt.Errorf("not acked: %w", err)
		}
		return nil
	}
	return contender{publish: publish, close: connection.Close}, nil
}

func watermillAMQP(pool int) setup {
	return func(uri, queue string, _ int) (contender, error) {
		config := amqp.NewDurableQueueConfig(uri)
		config.Publish.ConfirmDelivery = true
		config.Publish.ChannelPoolSize = pool
		config.TopologyBuilder = nothing{}
		p, err := amqp.NewPublisher(config, watermill.NopLogger{})
		if err != nil {
			return contender{}, err
		}
		return contender{publish: func() error { return p.Publish(queue, newMessage()) }, close: p.Close}, nil
	}
}

// nothing declares nothing: the queue exists already, with a type that watermill-amqp would not declare.
type nothing struct{}

func (nothing) BuildTopology(*amqp091.Channel, string, string, amqp.Config, watermill.LoggerAdapter) error {
	return nil
}

func (nothing) ExchangeDeclare(*amqp091.Channel, string, amqp.Config) error { return nil }

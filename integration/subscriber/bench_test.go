package subscriber_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
)

// inFlight is the prefetch of both sides.
const inFlight = 256

// BenchmarkConsume consumes persistent messages of 512 bytes from a quorum queue with handlers that do nothing: by hand with
// amqp091-go (a goroutine and an ack for each delivery), with this subscriber alone, and with it under Watermill's router. The
// sides take turns. An operation is one message on each side.
func BenchmarkConsume(b *testing.B) {
	sides := []struct {
		name    string
		consume func(b *testing.B, q *queue, count int) time.Duration
	}{{"hand-written", byHand}, {"subscriber", alone}, {"router", routed}}
	const rounds = 5
	took, cpu := make([][]time.Duration, len(sides)), make([]time.Duration, len(sides))
	for b.Loop() {
		for range rounds {
			for i, side := range sides {
				b.StopTimer()
				q := newQueue(b, quorum)
				fill(b, q, benchMessages)
				b.StartTimer()
				before := processorTime(b)
				took[i] = append(took[i], side.consume(b, q, benchMessages))
				cpu[i] += processorTime(b) - before
			}
		}
	}
	median := func(i int) time.Duration { slices.Sort(took[i]); return took[i][len(took[i])/2] }
	for i, side := range sides {
		b.ReportMetric(benchMessages/median(i).Seconds(), side.name+"/s")
		b.ReportMetric(cpu[i].Seconds()*1e6/float64(len(took[i])*benchMessages), side.name+"-cpu-µs")
		if i > 0 {
			b.ReportMetric(float64(median(0))/float64(median(i)), side.name+"-ratio")
		}
	}
}

const benchMessages = 20_000

// processorTime is what this process has used, without the broker.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func fill(b *testing.B, q *queue, count int) {
	b.Helper()
	body := make([]byte, 512)
	for i := range count {
		_, err := q.channel.PublishWithDeferredConfirm("", q.name, true, false, amqp091.Publishing{
			Headers: amqp091.Table{uuidHeader: fmt.Sprint("message ", i)}, Body: body, DeliveryMode: amqp091.Persistent,
		})
		require.NoError(b, err)
	}
	broker.Eventually(b, time.Minute, func() bool { return q.ready(b) == count }, "all are in the queue")
}

// A countdown is closed when all messages have been handled.
type countdown struct {
	mu   sync.Mutex
	left int
	done chan struct{}
}

func newCountdown(count int) *countdown { return &countdown{left: count, done: make(chan struct{})} }

func (c *countdown) one() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left--; c.left == 0 {
		close(c.done)
	}
}

func byHand(b *testing.B, q *queue, count int) time.Duration {
	channel := broker.Channel(b)
	require.NoError(b, channel.Qos(inFlight, 0, false))
	c := newCountdown(count)
	begin := time.Now()
	deliveries, err := channel.Consume(q.name, "", false, false, false, false, nil)
	require.NoError(b, err)
	go func() {
		for d := range deliveries {
			go func() {
				_ = d.Ack(false)
				c.one()
			}()
		}
	}()
	<-c.done
	took := time.Since(begin)
	require.NoError(b, channel.Close())
	return took
}

func alone(b *testing.B, q *queue, count int) time.Duration {
	s := benchSubscriber(b, q)
	c := newCountdown(count)
	begin := time.Now()
	messages, err := s.Subscribe(context.Background(), q.name)
	require.NoError(b, err)
	handle(messages, func(msg *message.Message) {
		msg.Ack()
		c.one()
	})
	<-c.done
	took := time.Since(begin)
	require.NoError(b, s.Close())
	return took
}

func routed(b *testing.B, q *queue, count int) time.Duration {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(b, err)
	c := newCountdown(count)
	router.AddConsumerHandler("bench", q.name, benchSubscriber(b, q), func(*message.Message) error {
		c.one()
		return nil
	})
	begin := time.Now()
	go func() { _ = router.Run(context.Background()) }()
	<-c.done
	took := time.Since(begin)
	require.NoError(b, router.Close())
	return took
}

func benchSubscriber(b *testing.B, q *queue) *subscriber.Subscriber {
	s, err := newSubscriber(open(b, broker.URL(b)), config{Declare: q.declare, Concurrency: inFlight}, nil)
	require.NoError(b, err)
	return s
}

package relay_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

var errDown = errors.New("the bank is down")

// app is a router with a relay on a gochannel.
type app struct {
	t         *testing.T
	pubSub    *gochannel.GoChannel
	publisher *probe // the relay's publisher
	tiers     *relay.Relay
	retry     *retrymw.TieredRetry
	router    *message.Router
	start     time.Time
	stopped   chan error
}

func newApp(t *testing.T, schedule backoff.Schedule, change ...func(*relay.Config)) *app {
	t.Helper()
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, nil)
	a := &app{
		t: t, pubSub: pubSub, publisher: &probe{Publisher: pubSub}, router: message.NewDefaultRouter(nil), start: time.Now(),
		stopped: make(chan error, 1),
	}
	config := relay.Config{
		Publisher: a.publisher, Policy: retry.Policy{Schedule: schedule},
		NewSubscriber: func(relay.SubscriberParams) (message.Subscriber, error) { return pubSub, nil },
	}
	for _, c := range change {
		c(&config)
	}
	var err error
	a.tiers, err = relay.New(config, nil)
	require.NoError(t, err)
	a.retry, err = retrymw.New(config.Policy, a.tiers.Backend(), nil)
	require.NoError(t, err)
	return a
}

func (a *app) handle(name string, h message.NoPublishHandlerFunc) *message.Handler {
	handler := a.tiers.AddConsumerHandler(a.router, name, "orders", a.pubSub, h)
	handler.AddMiddleware(a.retry.Middleware)
	return handler
}

func (a *app) run() {
	go func() { a.stopped <- a.router.Run(context.Background()) }()
	<-a.router.Running()
}

func (a *app) publish(uuids ...string) {
	for _, uuid := range uuids {
		require.NoError(a.t, a.pubSub.Publish("orders", orderOf(uuid)))
	}
}

// close ends all goroutines: a synctest bubble fails if one is left.
func (a *app) close() {
	synctest.Wait() // a message that the router is about to receive would outlive its Close
	require.NoError(a.t, a.router.Close())
	require.NoError(a.t, <-a.stopped)
	require.NoError(a.t, a.tiers.Close())
	require.NoError(a.t, a.pubSub.Close())
}

func orderOf(uuid string) *message.Message {
	msg := message.NewMessage(uuid, []byte{0, 0xff, 'o'})
	msg.Metadata = message.Metadata{"trace": "abc", "odd": "\xff\x00"}
	return msg
}

// published is a message that a probe has published.
type published struct {
	topic string
	at    time.Time
	msg   *message.Message
}

// probe is a publisher that records its messages and fails when fail returns an error.
type probe struct {
	message.Publisher
	mu   sync.Mutex
	all  []published
	fail func(topic string, tries int) error
	seen map[string]int // tries by topic
}

func (p *probe) Publish(topic string, messages ...*message.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen == nil {
		p.seen = map[string]int{}
	}
	p.seen[topic]++
	if p.fail != nil {
		if err := p.fail(topic, p.seen[topic]); err != nil {
			return err
		}
	}
	for _, msg := range messages {
		p.all = append(p.all, published{topic, time.Now(), msg.Copy()})
	}
	return p.Publisher.Publish(topic, messages...)
}

func (p *probe) to(topic string) (found []published) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.all {
		if one.topic == topic {
			found = append(found, one)
		}
	}
	return found
}

// calls records when a handler was called, and with which messages.
type calls struct {
	mu  sync.Mutex
	all []time.Time
	got []*message.Message
}

func (c *calls) add(msg *message.Message) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all, c.got = append(c.all, time.Now()), append(c.got, msg)
	return len(c.all)
}

// failsOnce fails at the first call for each message, and notes when each has failed and has come back.
type failsOnce struct {
	calls
	failed, back map[string]time.Time
	done         chan struct{} // closed when all messages are back
}

func newFailsOnce() *failsOnce {
	return &failsOnce{failed: map[string]time.Time{}, back: map[string]time.Time{}, done: make(chan struct{})}
}

// handle is the handler of so many messages.
func (f *failsOnce) handle(messages int) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		n := f.add(msg)
		f.mu.Lock()
		defer f.mu.Unlock()
		if _, retried := retry.ReadRecord(msg.Metadata); !retried {
			f.failed[msg.UUID] = time.Now()
			return errDown
		}
		f.back[msg.UUID] = time.Now()
		if n == 2*messages {
			close(f.done)
		}
		return nil
	}
}

func (c *calls) waits() (waits []time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := 1; i < len(c.all); i++ {
		waits = append(waits, c.all[i].Sub(c.all[i-1]))
	}
	return waits
}

func TestMessageIsDeadLetteredAfterItsSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Second, 10 * time.Minute, 5 * time.Second})
		dead, err := a.pubSub.Subscribe(t.Context(), "retry.dead.billing")
		require.NoError(t, err)
		var c calls
		a.handle("billing", func(msg *message.Message) error { c.add(msg); return errDown })
		a.run()
		a.publish("1")

		letter := <-dead
		letter.Ack()
		waits := c.waits()
		require.Len(t, waits, 3)
		for i, want := range []time.Duration{time.Second, 10 * time.Minute, 5 * time.Second} {
			assert.GreaterOrEqual(t, waits[i], want, "never early")
			assert.LessOrEqual(t, waits[i], want+10*time.Millisecond)
		}
		assert.Equal(t, orderOf("1").Payload, letter.Payload)
		record, ok := retry.ReadRecord(letter.Metadata)
		require.True(t, ok)
		assert.Equal(t, "orders", record.Topic)
		assert.Equal(t, "billing", record.Handler)
		assert.Equal(t, 4, record.Failures)
		for _, key := range []string{"retry_hop_due_at", delay.DelayedUntilKey, delay.DelayedForKey} {
			assert.NotContains(t, letter.Metadata, key)
		}
		assert.Len(t, a.publisher.to("retry.10m"), 30, "hops of 20 s")
		a.close()
	})
}

func TestRetryIsTheUnchangedMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Minute})
		var c calls
		done := make(chan struct{})
		a.handle("billing", func(msg *message.Message) error {
			if c.add(msg) == 1 {
				return errDown
			}
			close(done)
			return nil
		})
		a.run()
		a.publish("1")
		<-done
		a.close()

		want := orderOf("1")
		back := c.got[1]
		assert.Equal(t, want.UUID, back.UUID)
		assert.Equal(t, want.Payload, back.Payload)
		metadata := maps.Clone(back.Metadata)
		for _, key := range []string{
			recordkey.Failures, recordkey.FirstFailedAt, recordkey.LastFailedAt, recordkey.DueAt, recordkey.Reason,
			recordkey.ErrorType, recordkey.Topic, recordkey.Handler, delay.DelayedUntilKey, delay.DelayedForKey,
		} {
			assert.Contains(t, metadata, key)
			delete(metadata, key)
		}
		assert.Equal(t, want.Metadata, metadata)
	})
}

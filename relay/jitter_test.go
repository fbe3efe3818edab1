package relay_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// oneByOne is the subscriber of a Pub/Sub that delivers the next message after the ack of the last one, as most do. It takes the messages
// from gochannel at once: gochannel holds a mutex until a message is taken, and a blocked mutex stops the clock of a bubble.
type oneByOne struct{ message.Subscriber }

func (o oneByOne) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := o.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		var waiting []*message.Message
		var settled <-chan struct{} // of the message that was delivered last; nil: it is settled
		for {
			var deliver chan<- *message.Message
			var next *message.Message
			if settled == nil && len(waiting) > 0 {
				deliver, next = out, waiting[0]
			}
			select {
			case msg, open := <-in:
				if !open {
					return
				}
				waiting = append(waiting, msg)
			case deliver <- next:
				settled, waiting = next.Acked(), waiting[1:]
			case <-settled:
				settled = nil
			}
		}
	}()
	return out, nil
}

// Messages that fail together come back spread: never early, at most the jitter late, none lost and none twice. A Pub/Sub that delivers
// one message at a time would deliver almost all of them at the end, if they were on one topic: each waits behind those that are due later.
func TestJitterSpreadsMessagesThatFailedTogether(t *testing.T) {
	for name, tierSubscriber := range map[string]func(message.Subscriber) message.Subscriber{
		"delivers all at once":               func(s message.Subscriber) message.Subscriber { return s },
		"delivers one message after another": func(s message.Subscriber) message.Subscriber { return oneByOne{s} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const messages, delay, jitter = 2000, 5 * time.Second, 0.2
				const width = time.Second // of the jitter
				c := connect(t, func(config *relay.ConnectConfig) {
					pubSub, _ := config.NewSubscriber(relay.SubscriberParams{})
					config.NewSubscriber = func(relay.SubscriberParams) (message.Subscriber, error) { return tierSubscriber(pubSub), nil }
				})
				f := newFailsOnce()
				c.AddConsumerHandler(c.router, "billing", "orders", f.handle(messages),
					retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{delay}, Jitter: jitter}})
				c.run()
				for i := range messages {
					c.publish("orders", fmt.Sprint(i))
				}
				<-f.done
				c.close()
				require.Len(t, f.back, messages, "none lost")
				require.Len(t, f.all, 2*messages, "none twice")

				var inEighth [8]int
				for id, at := range f.back {
					waited := at.Sub(f.failed[id])
					require.GreaterOrEqual(t, waited, delay, "never early")
					require.LessOrEqual(t, waited, delay+width+10*time.Millisecond, "only the jitter late")
					inEighth[min(int((waited-delay-1)/(width/8)), 7)]++
				}
				for i, n := range inEighth { // expected: 250 in each, with a standard deviation of 15
					assert.InDelta(t, messages/8, n, messages/8/2, "eighth %d of %v", i, inEighth)
				}
				topics := 0
				for _, lane := range backoff.Lanes(delay, jitter) {
					if len(c.publisher.to("retry."+backoff.Tier(lane).String())) > 0 {
						topics++
					}
				}
				assert.Equal(t, 8, topics)
			})
		})
	}
}

// A middleware brings the lanes of its Jitter to the relay.
func TestJitterOfAnAppThatMakesTheMiddlewareItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Second})
		policy := retry.Policy{Schedule: backoff.Schedule{time.Second}, Jitter: 0.2}
		var err error
		a.retry, err = retrymw.New(policy, a.tiers.Backend(), nil)
		require.NoError(t, err)
		var c calls
		done := make(chan *message.Message, 1)
		a.handle("billing", failingOnce(&c, done))
		a.run()
		a.publish("1")
		<-done
		assert.GreaterOrEqual(t, c.waits()[0], time.Second)
		assert.LessOrEqual(t, c.waits()[0], 1210*time.Millisecond)
		a.close()
	})
}

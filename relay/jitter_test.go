package relay_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

// greedy takes the messages from gochannel at once: gochannel holds a mutex until a message is taken, and a blocked mutex stops the clock
// of a bubble. With one, it delivers the next message after the ack of the last one, as most Pub/Subs do.
type greedy struct {
	message.Subscriber
	one bool
}

func greedily(s message.Subscriber) (message.Subscriber, error) { return greedy{s, false}, nil }

func (o greedy) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
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
				waiting = waiting[1:]
				if o.one {
					settled = next.Acked()
				}
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
		"delivers one message after another": func(s message.Subscriber) message.Subscriber { return greedy{s, true} },
	} {
		bubble(t, name, func(t *testing.T) {
			const messages, delay, jitter = 2000, 5 * time.Second, 0.2
			const width = time.Second // of the jitter
			a := newApp(t, backoff.Schedule{time.Second},
				forTiers(func(s message.Subscriber) (message.Subscriber, error) { return tierSubscriber(s), nil }))
			f := newFailsOnce()
			a.handle("billing", f.handle(messages),
				retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{delay}, Jitter: jitter}})
			a.run()
			for i := range messages {
				a.publish(fmt.Sprint(i))
			}
			<-f.done
			a.close()
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
				if len(a.publisher.to("retry."+backoff.Tier(lane).String())) > 0 {
					topics++
				}
			}
			assert.Equal(t, 8, topics)
		})
	}
}

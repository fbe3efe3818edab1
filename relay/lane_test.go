package relay_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
)

// twoHandlers is an app whose orders both handlers get, and whose calls fail once for each of them.
func twoHandlers(t *testing.T, orders int) (a *app, billing, shipping *failsOnce) {
	t.Helper()
	a = newApp(t, backoff.Schedule{time.Second, 5 * time.Second, time.Hour}, forHandlers(greedily))
	billing, shipping = newFailsOnce(), newFailsOnce()
	a.handle("billing", billing.handle(orders))
	a.handle("shipping", shipping.handle(orders))
	return a, billing, shipping
}

// A topic that takes no messages delays those for other topics neither while its publishes fail nor while they hang.
// Its own messages are postponed, and come back when it takes them: each once.
func TestTopicThatTakesNothingDelaysNoOther(t *testing.T) {
	for name, fails := range map[string]func(){
		"fails": func() {},
		"hangs": func() { time.Sleep(8 * time.Second) },
	} {
		bubble(t, name, func(t *testing.T) {
			const orders, outage = 60, 3 * time.Minute
			a, billing, shipping := twoHandlers(t, orders)
			until := time.Now().Add(outage)
			a.publisher.before = func(topic string, _ *message.Message) error {
				if topic != "retry.return.billing" || time.Now().After(until) {
					return nil
				}
				fails()
				return errDown
			}
			a.run()
			for i := range orders {
				if i == orders/2 {
					time.Sleep(2 * time.Second) // a batch of the first ones is being published
				}
				a.publish(fmt.Sprint(i))
			}
			<-shipping.done
			for id, at := range shipping.back {
				late := at.Sub(shipping.failed[id]) - time.Second
				require.GreaterOrEqual(t, late, time.Duration(0), "never early")
				require.LessOrEqual(t, late, 10*time.Millisecond)
			}
			<-billing.done
			assert.Len(t, billing.back, orders)
			assert.Less(t, time.Since(until), 20*time.Second, "5s on a tier, and its last attempt")
			assert.Less(t, len(a.publisher.to("retry.5s")), orders*(int(outage/(5*time.Second))+1), "no hot loop")
			a.close()
			assert.Len(t, billing.all, 2*orders, "none twice")
		})
	}
}

// One message that its topic refuses delays no other message for the topic.
func TestMessageThatItsTopicRefusesDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const orders = 100
		a := newApp(t, backoff.Schedule{time.Second}, forHandlers(greedily))
		f := newFailsOnce()
		a.handle("billing", f.handle(orders))
		until := time.Now().Add(time.Minute)
		a.publisher.before = func(topic string, msg *message.Message) error {
			if topic == "retry.return.billing" && msg.UUID == "13" && time.Now().Before(until) {
				return errDown
			}
			return nil
		}
		a.run()
		for i := range orders {
			a.publish(fmt.Sprint(i))
		}
		<-f.done
		for id, at := range f.back {
			if id != "13" {
				assert.Less(t, at.Sub(f.failed[id]), 1100*time.Millisecond, id)
			}
		}
		a.close()
		assert.Len(t, f.all, 2*orders, "none twice")
	})
}

// What waits while nothing can be published comes back at the end of the outage, and does not wait on a tier again.
func TestOutageOfTheBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const orders = 300
		a, billing, shipping := twoHandlers(t, orders)
		a.run()
		for i := range orders {
			a.publish(fmt.Sprint(i))
		}
		synctest.Wait()
		until := time.Now().Add(12 * time.Second)
		a.publisher.before = func(string, *message.Message) error {
			if time.Now().Before(until) {
				return errDown
			}
			return nil
		}
		<-billing.done
		<-shipping.done
		assert.Less(t, time.Since(until), 15*time.Second)
		a.close()
		assert.Len(t, billing.all, 2*orders, "none twice")
		assert.Len(t, shipping.all, 2*orders, "none twice")
	})
}

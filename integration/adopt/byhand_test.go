package adopt

import (
	"errors"
	"hash/crc32"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
)

// A way is how an app without Watermill and without the library makes a message wait after a failure.
type way struct {
	waits    []string      // suffixes of the names of the queues with a TTL, one for each delay, or one for all
	nacks    bool          // through the dead-letter exchange of the work queue, with one delay; else the app publishes a copy
	expires  bool          // each copy has a TTL of its own
	succeeds bool          // no call by hand fails
	headers  amqp091.Table // of each message that is published
}

// diedOn reports whether the broker has dead-lettered the message from a queue.
func diedOn(queue string, delivery amqp091.Delivery) bool {
	deaths, _ := delivery.Headers["x-death"].([]any)
	return slices.ContainsFunc(deaths, func(death any) bool {
		entry, _ := death.(amqp091.Table)
		return entry["queue"] == queue
	})
}

// tries is the header in which an app counts that publishes a copy.
const tries = "x-tries"

// handDelays are those of the ways by hand. The last one counts for each failure after it.
var handDelays = []time.Duration{300 * time.Millisecond, time.Second}

// declareByHand makes the queues, the work queue too.
func (d *deployment) declareByHand(channel *amqp091.Channel) error {
	var arguments amqp091.Table
	if d.way.nacks {
		arguments = amqp091.Table{"x-dead-letter-exchange": d.queue + ".dlx"}
		if err := channel.ExchangeDeclare(d.queue+".dlx", "fanout", true, false, false, false, nil); err != nil {
			return err
		}
	}
	for i, wait := range d.waiting() {
		back := amqp091.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": d.queue}
		if !d.way.expires {
			back["x-message-ttl"] = handDelays[i].Milliseconds()
		}
		if _, err := channel.QueueDeclare(wait, true, false, false, false, back); err != nil {
			return err
		}
		if d.way.nacks {
			if err := channel.QueueBind(wait, "", d.queue+".dlx", false, nil); err != nil {
				return err
			}
		}
	}
	_, err := channel.QueueDeclare(d.queue, true, false, false, false, arguments)
	return err
}

// waitByHand makes a delivery wait that has failed: it is nacked, or a copy is published with a confirm, then it is
// acked.
func (d *deployment) waitByHand(channel *amqp091.Channel, delivery amqp091.Delivery) error {
	if d.way.nacks {
		return delivery.Nack(false, false)
	}
	before, _ := delivery.Headers[tries].(int32)
	n := min(int(before), len(handDelays)-1)
	headers, expiration := maps.Clone(delivery.Headers), ""
	delete(headers, "x-death")
	headers[tries] = before + 1
	if d.way.expires {
		expiration = strconv.FormatInt(handDelays[n].Milliseconds(), 10)
	}
	confirm, err := channel.PublishWithDeferredConfirm("", d.waiting()[min(n, len(d.way.waits)-1)], true, false, amqp091.Publishing{
		Headers: headers, DeliveryMode: amqp091.Persistent, Body: delivery.Body, Expiration: expiration,
	})
	if err != nil {
		return err
	}
	if !confirm.Wait() {
		return errors.New("the queue did not take the copy")
	}
	return delivery.Ack(false)
}

// startByHand consumes with amqp091-go. It returns what stops the instance: what it has received is handled first.
func (i *instance) startByHand() (stop func()) {
	d := i.d
	d.t.Helper()
	connection := broker.Connect(d.t)
	channel, err := connection.Channel()
	require.NoError(d.t, err)
	require.NoError(d.t, channel.Confirm(false))
	require.NoError(d.t, d.declareByHand(channel))
	require.NoError(d.t, channel.Qos(2*i.handlers, 0, false))
	deliveries, err := channel.Consume(i.queue, "by hand", false, false, false, false, nil)
	require.NoError(d.t, err)
	var handlers sync.WaitGroup
	for range i.handlers {
		handlers.Go(func() {
			for delivery := range deliveries {
				assert.NoError(d.t, i.handleByHand(channel, delivery))
			}
		})
	}
	return func() {
		require.NoError(d.t, channel.Cancel("by hand", false))
		handlers.Wait()
		require.NoError(d.t, connection.Close())
	}
}

func (i *instance) handleByHand(channel *amqp091.Channel, delivery amqp091.Delivery) error {
	i.d.deliveries.Add(string(delivery.Body))
	if i.handle(message.NewMessage(delivery.MessageId, delivery.Body)) == nil {
		if slices.ContainsFunc(i.d.tiers(), func(tier string) bool { return diedOn(tier, delivery) }) {
			i.returned.Add(1)
		}
		return delivery.Ack(false)
	}
	return i.d.waitByHand(channel, delivery)
}

// waiting are the queues on which messages wait by hand.
func (d *deployment) waiting() (names []string) {
	if d.way == nil {
		return nil
	}
	for _, suffix := range d.way.waits {
		names = append(names, d.queue+suffix)
	}
	return names
}

// newByHand is an app that makes messages wait by hand. Some messages fail twice.
func newByHand(t testing.TB, by way) *deployment {
	t.Helper()
	d := newDeployment(t)
	d.way = &by
	d.schedule = backoff.Schedule{300 * time.Millisecond, time.Second}
	d.fails = func(identity string, call int) bool {
		sum := crc32.ChecksumIEEE([]byte(identity))
		return call == 1 && sum%5 == 0 || call == 2 && sum%10 == 0
	}
	return d
}

func TestFromQueuesWithATTL(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]way{
		"one queue":              {waits: []string{".wait"}, nacks: true}, // the usual article
		"a queue for each delay": {waits: []string{".wait.300ms", ".wait.1s"}},
		"a TTL of each message":  {waits: []string{".wait"}, expires: true}, // the other usual article
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fromWaitingByHand(t, by)
		})
	}
}

// fromWaitingByHand replaces instances by hand by those of Connect under traffic, with one rollback.
func fromWaitingByHand(t *testing.T, by way) {
	t.Helper()
	d := newByHand(t, by)
	old := d.both(byHand)
	before, err := broker.Queue(broker.Management(t), d.queue)
	require.NoError(t, err)
	f := d.send(300)
	work(t, 10, old...)
	d.waitUntilReady(d.waiting()...)

	// Step 1: every instance gets Connect, one after the other. Both builds process what the other one has made wait.
	updated := d.replace(old, connected, func(first *instance) {
		returnsTo(t, old[0], first)
		broker.Eventually(t, patience, func() bool { return d.takenOver.Len() > 0 }, "Connect processes what has waited by hand")
		rolledBack := d.start(byHand)
		returnsTo(t, rolledBack)
		rolledBack.stop()
	})

	// Step 2: no old instance is left, and nothing waits by hand.
	d.waitUntilEmpty(d.waiting()...)

	// Step 3: the queues on which messages waited go, and nothing declares them again.
	for _, queue := range d.waiting() {
		testapp.Delete(t, queue)
	}
	require.NoError(t, broker.Channel(t).ExchangeDelete(d.queue+".dlx", false, false)) // where there is one
	work(t, 20, updated...)
	for _, queue := range d.waiting() {
		assert.NotContains(t, d.queues(), queue)
	}
	t.Logf("waited by hand, then processed with Connect: %d", d.takenOver.Len())
	d.balance(f, append(d.tiers(), d.queue, d.queue+".dead", d.prefix+".orphans")...)
	after, err := broker.Queue(broker.Management(t), d.queue)
	require.NoError(t, err)
	assert.Equal(t, before.Arguments, after.Arguments, "the queue is as it was")
}

// TestFromTheDelayedExchange adopts the app of the plugin's exchange x-delayed-message. The brokers of the tests do not have the
// plugin: its messages come as the plugin succeeds them. What waits in the exchange, and step 3, are not tested.
func TestFromTheDelayedExchange(t *testing.T) {
	t.Parallel()
	d := newByHand(t, way{succeeds: true, headers: amqp091.Table{"x-delay": int32(-1000)}})
	old := d.both(byHand)
	f := d.send(300)
	work(t, 10, old...)

	// Step 1: every instance gets Connect, one after the other.
	d.replace(old, connected, func(first *instance) { returnsTo(t, old[0], old[1], first) })

	// Step 2: publishers give the library the delay of a message.
	rabbit, err := config.Connect(d.instance(connected).options(), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, rabbit.Close()) }()
	reminder := message.NewMessage("reminder", []byte("reminder"))
	delay.Message(reminder, delay.For(time.Second))
	published := time.Now()
	require.NoError(t, rabbit.Publisher().Publish(d.queue, reminder))
	broker.Eventually(t, patience, func() bool { return d.processed.Counts()["reminder"] > 0 }, "the reminder comes")
	assert.GreaterOrEqual(t, d.processed.Times()["reminder"][0].Sub(published), broker.Least(time.Second))
	f.published.Add(1)

	// Step 3: the exchange is empty. It goes, then the plugin.

	d.balance(f, append(d.tiers(), d.queue, d.queue+".dead", d.prefix+".orphans")...)
}

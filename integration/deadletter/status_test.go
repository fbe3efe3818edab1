package deadletter_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// A board declares work queues whose names no other test uses, and opens stores of them.
type board struct {
	t       *testing.T
	name    string // the prefix, and a part of all names
	channel *amqp091.Channel
}

func newBoard(t *testing.T) board {
	t.Helper()
	name := broker.Name(t, "board")
	broker.Clean(t, name)
	b := board{t, name, broker.Channel(t)}
	require.NoError(t, b.channel.Confirm(false))
	return b
}

func (b board) queue(base string) string       { return base + "_" + b.name }
func (b board) tier(group, word string) string { return b.queue(group) + "." + b.name + "." + word }
func (b board) config(management bool) deadletter.Config {
	config := deadletter.Config{URI: broker.URL(b.t), Prefix: b.name}
	if management {
		client := broker.Management(b.t)
		address, err := url.Parse(client.Endpoint)
		require.NoError(b.t, err)
		address.User = url.UserPassword(client.Username, client.Password)
		config.Management = address.String()
	}
	return config
}

func (b board) store(management bool) *deadletter.Store {
	b.t.Helper()
	store, err := deadletter.Open(b.config(management), nil)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { require.NoError(b.t, store.Close()) })
	return store
}

// of returns the topology of a work queue, with tiers of its own where the group is empty.
func (b board) of(queue, group string, tiers ...time.Duration) topology.Topology {
	config := topology.Config{Prefix: b.name, Tiers: backoff.Schedule(tiers).Tiers()}
	if group != "" {
		config.TierGroup = b.queue(group)
	}
	return topology.New(config, topology.Queue{Name: b.queue(queue), Durable: true})
}

func (b board) declare(topologies ...topology.Topology) {
	b.t.Helper()
	for _, t := range topologies {
		require.NoError(b.t, t.Declare(b.channel))
	}
}

// publish publishes messages that the broker routes and confirms.
func (b board) publish(exchange, key string, bodies ...string) {
	b.t.Helper()
	for _, body := range bodies {
		confirm, err := b.channel.PublishWithDeferredConfirm(exchange, key, true, false, amqp091.Publishing{
			DeliveryMode: amqp091.Persistent, MessageId: body, Body: []byte(body), Headers: amqp091.Table{"_watermill_message_uuid": body},
		})
		require.NoError(b.t, err)
		require.True(b.t, confirm.Wait())
	}
}

// wait publishes copies that wait on a tier.
func (b board) wait(t topology.Topology, tier string, bodies ...string) {
	b.t.Helper()
	b.publish(t.Exchange(), tier+"."+t.WorkQueue.Name, bodies...)
}

func (b board) remove(queues ...string) {
	b.t.Helper()
	for _, queue := range queues {
		_, err := b.channel.QueueDelete(queue, false, false, false)
		require.NoError(b.t, err)
	}
}

// retired lists the tiers of a work queue without the names of the test, those that are retired with a "!".
func (b board) retired(w deadletter.WorkQueue) (tiers []string) {
	for _, tier := range w.Tiers {
		word := backoff.Tier(tier.Delay).String()
		if tier.Retired {
			word += "!"
		}
		if tier.Group != "" {
			word += " shared"
		}
		if tier.Missing {
			word += " missing"
		}
		tiers = append(tiers, word)
	}
	return tiers
}

func find(t *testing.T, status deadletter.Status, name string) deadletter.WorkQueue {
	t.Helper()
	at := slices.IndexFunc(status.Queues, func(w deadletter.WorkQueue) bool { return w.Name == name })
	require.GreaterOrEqual(t, at, 0, "%s is not in the status", name)
	return status.Queues[at]
}

func TestStatus(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	orders, lost, gone := b.of("orders", "", time.Hour, 2*time.Hour), b.of("lost", "", time.Hour), b.of("gone", "",
		time.Hour)
	quiet, last := b.of("quiet", "shop", time.Hour), b.of("last", "left", time.Hour)
	classic := topology.New(topology.Config{Prefix: b.name, Tiers: backoff.Schedule{time.Hour}.Tiers(),
		TierGroup: b.queue("shop"), WorkQueueMode: topology.Leave},
		topology.Queue{Name: b.queue("classic"), Durable: true})
	b.declare(orders, lost, gone, quiet, last, classic)
	b.wait(orders, "1h", "a", "b", "c")
	b.wait(gone, "1h", "d")
	b.publish(b.name, "dead."+b.queue("orders"), "e", "f")
	b.publish(b.name+".orphans", "1h.x", "g")
	b.publish("", b.queue("orders"), "h", "i")
	b.publish("", b.queue("classic")+"."+b.name+".inbox") // nothing: the inbox exists
	b.remove(b.queue("lost"), b.queue("gone"), b.queue("gone")+".dead", b.queue("last"), b.queue("last")+".dead")
	require.NoError(t, b.channel.QueueUnbind(b.tier("orders", "2h"), "2h."+b.queue("orders"), b.name, nil))
	consumer := broker.Channel(t)
	require.NoError(t, consumer.Qos(1, 0, false))
	deliveries, err := consumer.Consume(b.queue("orders"), "", false, false, false, false, nil)
	require.NoError(t, err)
	broker.Receive(t, deliveries, "a message of the consumer")

	store := b.store(true)
	var status deadletter.Status
	broker.Eventually(t, 90*time.Second, func() bool {
		status, err = store.Status(t.Context(), nil)
		if err != nil {
			return false
		}
		w := find(t, status, b.queue("orders"))
		return w.Unacked == 1 && w.Ready == 1 && w.Consumers == 1 && w.Dead.Messages == 2 && status.Orphans.Messages == 1 &&
			len(w.Tiers) == 2 && w.Tiers[0].Messages == 3
	}, "the figures of the management API")
	w := find(t, status, b.queue("orders"))
	assert.Equal(t, []string{"1h", "2h!"}, b.retired(w))
	assert.Equal(t, status.At.Add(time.Hour), w.Tiers[0].NextDue)
	assert.Zero(t, w.Tiers[1].NextDue, "an empty tier")
	assert.Equal(t, b.tier("orders", "1h"), w.Tiers[0].Queue)
	assert.False(t, w.Missing)
	assert.Empty(t, w.Inbox.Queue)
	assert.Equal(t, b.name+".orphans", status.Orphans.Queue)

	w = find(t, status, b.queue("lost"))
	assert.True(t, w.Missing)
	assert.False(t, w.Dead.Missing)
	assert.Equal(t, []string{"1h!"}, b.retired(w), "no key leads back to a work queue that is gone")
	assert.Equal(t, []string{"1h shared"}, b.retired(find(t, status, b.queue("quiet"))))
	w = find(t, status, b.queue("classic"))
	assert.Equal(t, []string{"1h shared"}, b.retired(w))
	assert.Equal(t, b.queue("classic")+"."+b.name+".inbox", w.Inbox.Queue)
	var stray []string
	for _, s := range status.Stray {
		stray = append(stray, s.Queue)
	}
	assert.Equal(t, []string{b.tier("gone", "1h"), b.tier("left", "1h")}, stray)
	assert.False(t, slices.ContainsFunc(status.Queues,
		func(w deadletter.WorkQueue) bool { return w.Name == b.queue("gone") }))

	t.Run("names", func(t *testing.T) {
		named, err := store.Status(t.Context(), nil, b.queue("orders"), b.queue("absent"))
		require.NoError(t, err)
		require.Len(t, named.Queues, 2)
		assert.True(t, named.Queues[0].Missing && named.Queues[0].Dead.Missing, "a work queue that does not exist")
		assert.Empty(t, named.Stray)
	})
	t.Run("topologies", func(t *testing.T) {
		with, err := store.Status(t.Context(),
			[]topology.Topology{b.of("orders", "", 2*time.Hour, 3*time.Hour), b.of("quiet", "shop", 4*time.Hour)})
		require.NoError(t, err)
		assert.Equal(t, []string{"1h!", "2h", "3h missing"}, b.retired(find(t, with, b.queue("orders"))))
		assert.Equal(t, []string{"1h! shared", "4h shared missing"}, b.retired(find(t, with, b.queue("quiet"))))
		assert.Equal(t, []string{"1h! shared"}, b.retired(find(t, with, b.queue("classic"))), "a tier of the same group")
		assert.Equal(t, []string{"1h!"}, b.retired(find(t, with, b.queue("lost"))))
	})
	t.Run("without the management API", func(t *testing.T) {
		plain := b.store(false)
		_, err := plain.Status(t.Context(), nil)
		require.ErrorContains(t, err, "name the work queues, or set Management")
		byName, err := plain.Status(t.Context(), []topology.Topology{b.of("orders", "", time.Hour, 3*time.Hour)},
			b.queue("lost"), b.queue("orders"))
		require.NoError(t, err)
		require.Len(t, byName.Queues, 2)
		w := find(t, byName, b.queue("orders"))
		assert.Equal(t, []string{"1h", "3h missing"}, b.retired(w))
		assert.Equal(t, []int{1, 3, 2, 1}, []int{w.Messages, w.Tiers[0].Messages, w.Dead.Messages, byName.Orphans.Messages})
		assert.Equal(t, byName.At.Add(time.Hour), w.Tiers[0].NextDue)
		w = find(t, byName, b.queue("lost"))
		assert.True(t, w.Missing && !w.Dead.Missing)
	})
}

// TestStatusIsFresh: the numbers of ready messages and of consumers are not those of the management API, which are
// late.
func TestStatusIsFresh(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	orders := b.of("orders", "", time.Hour)
	b.declare(orders)
	store := b.store(true)
	for n := 1; n <= 3; n++ { // the API can be new by chance
		b.publish(b.name, "dead."+b.queue("orders"), "letter")
		b.wait(orders, "1h", "waits")
		_, err := broker.Channel(t).Consume(b.queue("orders"), "", false, false, false, false, nil)
		require.NoError(t, err)
		status, err := store.Status(t.Context(), nil, b.queue("orders"))
		require.NoError(t, err)
		w := find(t, status, b.queue("orders"))
		assert.Equal(t, []int{n, n, n}, []int{w.Dead.Ready, w.Dead.Messages, w.Consumers})
		require.Len(t, w.Tiers, 1)
		assert.Equal(t, n, w.Tiers[0].Messages)
		assert.Equal(t, status.At.Add(time.Hour), w.Tiers[0].NextDue)
	}
}

// TestStatusTellsAPauseFromAnAppThatIsDown: with a handler that is paused, also across a reconnect, and after its app
// has ended. The virtual host has no other app.
func TestStatusTellsAPauseFromAnAppThatIsDown(t *testing.T) {
	t.Parallel()
	client, name := broker.Management(t), broker.Name(t, "pause")
	address, err := url.Parse(broker.URL(t))
	require.NoError(t, err)
	_, err = client.PutVhost(name, rabbithole.VhostSettings{})
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = client.DeleteVhost(name) })
	_, err = client.UpdatePermissionsIn(name, client.Username,
		rabbithole.Permissions{Configure: ".*", Write: ".*", Read: ".*"})
	require.NoError(t, err)
	address.Path = "/" + name
	api, err := url.Parse(client.Endpoint)
	require.NoError(t, err)
	api.User = url.UserPassword(client.Username, client.Password)

	rabbit, err := config.Connect(config.Config{
		AMQP: amqp.NewDurableQueueConfig(address.String()), Policy: retry.Policy{Schedule: backoff.Schedule{time.Minute}},
	}, nil)
	require.NoError(t, err)
	router := message.NewDefaultRouter(nil)
	handled := make(chan string, 1)
	rabbit.AddConsumerHandler(router, "billing", "orders",
		func(msg *message.Message) error { handled <- msg.UUID; return nil })
	stop := testapp.Start(t, router)

	why := func(management string) string {
		store, err := deadletter.Open(deadletter.Config{URI: address.String(), Management: management}, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, store.Close()) }()
		status, err := store.Status(t.Context(), nil, "orders")
		require.NoError(t, err)
		return find(t, status, "orders").NoConsumer
	}
	becomes := func(management, want string) {
		t.Helper()
		broker.Eventually(t, soon, func() bool { return why(management) == want }, "it is %q", want)
	}
	becomes(api.String(), "")
	require.NoError(t, rabbit.Pause("billing"))
	becomes(api.String(), "paused, or its app is down")
	becomes("", "paused, or its app is down")

	for _, connection := range connectionsOf(t, client, name) {
		_, err := client.CloseConnection(connection)
		require.NoError(t, err)
	}
	broker.Eventually(t, soon, func() bool {
		return rabbit.Health().Links[0].Reconnects > 0 && rabbit.Health().Ready() == nil
	}, "the app is connected again")
	becomes(api.String(), "paused, or its app is down")
	require.NoError(t, rabbit.Resume("billing"))
	require.NoError(t, rabbit.Publisher().Publish("orders", message.NewMessage("order-1", nil)))
	assert.Equal(t, "order-1", broker.Receive(t, handled, "the handler goes on"))

	stop()
	require.NoError(t, rabbit.Close())
	becomes(api.String(), "its app is down")
	untagged := broker.User(t, "", "", ".*")
	_, err = client.PutUser(untagged, rabbithole.UserSettings{Password: untagged, Tags: rabbithole.UserTags{"management"}})
	require.NoError(t, err)
	_, err = client.UpdatePermissionsIn(name, untagged, rabbithole.Permissions{Read: ".*"})
	require.NoError(t, err)
	api.User = url.UserPassword(untagged, untagged)
	becomes(api.String(), "paused, or its app is down")
}

// connectionsOf waits until the management API shows both connections of an app, and returns their names.
func connectionsOf(t *testing.T, client *rabbithole.Client, vhost string) (names []string) {
	t.Helper()
	broker.Eventually(t, soon, func() bool {
		all, err := client.ListVhostConnections(vhost)
		require.NoError(t, err)
		names = nil
		for _, connection := range all {
			if strings.HasPrefix(fmt.Sprint(connection.ClientProperties["connection_name"]), "watermill-retry ") {
				names = append(names, connection.Name)
			}
		}
		return len(names) == 2
	}, "two connections")
	return names
}

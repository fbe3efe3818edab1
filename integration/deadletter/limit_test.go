package deadletter_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/publisher"
)

// TestListingsBelowALimitOfAPolicy: the management API shows the limit that a policy sets, also on a dead-letter queue of the library.
func TestListingsBelowALimitOfAPolicy(t *testing.T) {
	t.Parallel()
	queue := deadletter.QueueOf(broker.Name(t, "limited"))
	broker.Clean(t, queue)
	client := broker.Management(t)
	_, err := client.PutPolicy("/", queue, rabbithole.Policy{
		Pattern: "^" + queue + "$", ApplyTo: "queues", Definition: rabbithole.PolicyDefinition{"delivery-limit": 6},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = client.DeletePolicy("/", queue) })
	_, err = broker.Channel(t).QueueDeclare(queue, true, false, false, false, amqp091.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000),
	})
	require.NoError(t, err)
	broker.Eventually(t, time.Minute, func() bool {
		info, err := client.GetQueue("/", queue)
		return err == nil && info.Policy == queue
	}, "the policy")
	publish, err := publisher.New(publisher.ConnectionConfig{URI: broker.URL(t)}, publisher.Config{}, nil)
	require.NoError(t, err)
	defer publish.Close()
	want := map[string]int{}
	for i := range 10 {
		want[strconv.Itoa(i)] = 1
		require.NoError(t, publish.Publish(queue, message.NewMessage(strconv.Itoa(i), nil)))
	}

	store, err := deadletter.Open(deadletter.Config{URI: broker.URL(t), Management: managementURL(t)}, nil)
	require.NoError(t, err)
	defer store.Close()
	for listing := range 20 {
		have := map[string]int{}
		for l, err := range store.Browse(t.Context(), queue, letters.Filter{}) {
			require.NoError(t, err)
			have[l.ID]++
		}
		assert.Equal(t, want, have, fmt.Sprintf("listing %d", listing))
	}
}

// TestNoLookAtAnAutoDeleteQueue: the broker would delete it, with its letters, when the consumer of the look ends.
func TestNoLookAtAnAutoDeleteQueue(t *testing.T) {
	t.Parallel()
	queue := broker.Name(t, "poison")
	broker.Clean(t, queue)
	_, err := broker.Channel(t).QueueDeclare(queue, true, true, false, false, nil)
	require.NoError(t, err)
	publish, err := publisher.New(publisher.ConnectionConfig{URI: broker.URL(t)}, publisher.Config{}, nil)
	require.NoError(t, err)
	defer publish.Close()
	require.NoError(t, publish.Publish(queue, message.NewMessage("1", nil)))
	store, err := deadletter.Open(deadletter.Config{URI: broker.URL(t), Management: managementURL(t)}, nil)
	require.NoError(t, err)
	defer store.Close()
	broker.Eventually(t, time.Minute, func() bool {
		_, err := broker.Management(t).GetQueue("/", queue)
		return err == nil
	}, "the management API has the queue")
	for _, err := range store.Browse(t.Context(), queue, letters.Filter{}) {
		require.ErrorContains(t, err, "auto-delete")
	}
	assert.Equal(t, 1, testapp.Depth(t, queue))
}

// managementURL returns the address of the management API with the user of the tests.
func managementURL(t *testing.T) string {
	client := broker.Management(t)
	return fmt.Sprintf("http://%s:%s@%s", client.Username, clientPassword(t), client.Endpoint[len("http://"):])
}

func clientPassword(t *testing.T) string {
	uri, err := amqp091.ParseURI(broker.URL(t))
	require.NoError(t, err)
	return uri.Password
}

package connect_test

import (
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestTwoConnections: 50 handlers in 10 groups, with 5 schedules, fail, retry and publish over two connections.
func TestTwoConnections(t *testing.T) {
	t.Parallel()
	const groups, topics = 10, 5
	var dialled atomic.Int32
	b := testapp.Config(t)
	testapp.FanOut(&b)
	properties := amqp091.NewConnectionProperties()
	properties.SetClientConnectionName(b.Prefix)
	b.AMQP.Connection.AmqpConfig = &amqp091.Config{
		Properties: properties,
		Dial: func(network, address string) (net.Conn, error) {
			dialled.Add(1)
			return amqp091.DefaultDial(30*time.Second)(network, address)
		},
	}
	s := testapp.Connect(t, b)
	retried := testapp.NewLedger()
	for g := range groups {
		for n := range topics {
			group, topic := fmt.Sprint("g", g), fmt.Sprint("topic", n)
			s.AddConsumerHandler(s.Router, group+"/"+topic, s.Queue(topic), func(msg *message.Message) error {
				if testapp.Failures(msg) == 0 {
					return errDown
				}
				retried.Add(group + "/" + topic + "/" + msg.UUID)
				return nil
			}, retry.Options{Group: group, Policy: &retry.Policy{Schedule: backoff.Schedule{time.Duration(100+g%5) * time.Millisecond}}})
		}
	}
	s.Run()
	for n := range topics {
		s.Publish(s.Queue(fmt.Sprint("topic", n)), testapp.IDs(3)...)
	}
	retried.Wait(t, groups*topics*3, soon)
	assert.EqualValues(t, 2, dialled.Load(), "connections that were ever opened")

	client := broker.Management(t)
	testapp.Eventually(t, func() bool {
		connections, err := client.ListConnections()
		if err != nil {
			return false
		}
		open := 0
		for _, c := range connections {
			if c.ClientProperties["connection_name"] == b.Prefix {
				open++
			}
		}
		return open == 2
	}, "the broker has two connections of the app")
	assert.Len(t, s.Health().Subscriptions, groups*topics)
}

// TestFanOut: each group gets each message, and a failure of one group comes back to that group only.
func TestFanOut(t *testing.T) {
	t.Parallel()
	const groups, count = 10, 20
	s := testapp.New(t, testapp.FanOut)
	deliveries := testapp.NewLedger()
	for g := range groups {
		group := fmt.Sprint("g", g)
		s.AddConsumerHandler(s.Router, group, s.Queue("orders"), func(msg *message.Message) error {
			deliveries.Add(group + "/" + msg.UUID)
			if group == "g3" && testapp.Failures(msg) < 2 {
				return errDown
			}
			return nil
		}, retry.Options{Group: group})
	}
	s.Run()
	s.Publish(s.Queue("orders"), testapp.IDs(count)...)
	deliveries.Wait(t, groups*count, soon)
	want := map[string]int{}
	for g := range groups {
		for _, id := range testapp.IDs(count) {
			want[fmt.Sprintf("g%d/%s", g, id)] = 1
			if g == 3 {
				want[fmt.Sprintf("g%d/%s", g, id)] = 3
			}
		}
	}
	testapp.Eventually(t, func() bool { return assert.ObjectsAreEqual(want, deliveries.Counts()) },
		"the failing group gets its messages again")
	queue := s.Queue("orders")
	assert.True(t, testapp.Exists(t, queue+"_g3."+s.Name+".100ms"))
	testapp.Eventually(t, func() bool { return testapp.Depth(t, queue+"_g3."+s.Name+".300ms") == 0 },
		"nothing waits any more")
	assert.Equal(t, want, deliveries.Counts())
}

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
	name, b := names(t)
	fanOut(&b)
	properties := amqp091.NewConnectionProperties()
	properties.SetClientConnectionName(name)
	b.AMQP.Connection.AmqpConfig = &amqp091.Config{
		Properties: properties,
		Dial: func(network, address string) (net.Conn, error) {
			dialled.Add(1)
			return amqp091.DefaultDial(30*time.Second)(network, address)
		},
	}
	s := connect(t, name, b)
	retried := testapp.NewLedger()
	for g := range groups {
		for n := range topics {
			group, topic := fmt.Sprint("g", g), fmt.Sprint("topic", n)
			s.handle(group+"/"+topic, topic, func(msg *message.Message) error {
				if failures(msg) == 0 {
					return errDown
				}
				retried.Add(group + "/" + topic + "/" + msg.UUID)
				return nil
			}, retry.Options{Group: group, Policy: &retry.Policy{Schedule: backoff.Schedule{time.Duration(100+g%5) * time.Millisecond}}})
		}
	}
	s.run()
	for n := range topics {
		s.publish(fmt.Sprint("topic", n), ids(3)...)
	}
	retried.Wait(t, groups*topics*3, soon)
	assert.EqualValues(t, 2, dialled.Load(), "connections that were ever opened")

	client := broker.Management(t)
	eventually(t, func() bool {
		connections, err := client.ListConnections()
		if err != nil {
			return false
		}
		open := 0
		for _, c := range connections {
			if c.ClientProperties["connection_name"] == name {
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
	s := open(t, fanOut)
	deliveries := testapp.NewLedger()
	for g := range groups {
		group := fmt.Sprint("g", g)
		s.handle(group, "orders", func(msg *message.Message) error {
			deliveries.Add(group + "/" + msg.UUID)
			if group == "g3" && failures(msg) < 2 {
				return errDown
			}
			return nil
		}, retry.Options{Group: group})
	}
	s.run()
	s.publish("orders", ids(count)...)
	deliveries.Wait(t, groups*count, soon)
	want := map[string]int{}
	for g := range groups {
		for _, id := range ids(count) {
			want[fmt.Sprintf("g%d/%s", g, id)] = 1
			if g == 3 {
				want[fmt.Sprintf("g%d/%s", g, id)] = 3
			}
		}
	}
	eventually(t, func() bool { return assert.ObjectsAreEqual(want, deliveries.Counts()) }, "the failing group gets its messages again")
	queue := s.topic("orders")
	assert.True(t, exists(t, queue+"_g3."+s.name+".100ms"))
	eventually(t, func() bool { return testapp.Depth(t, queue+"_g3."+s.name+".300ms") == 0 }, "nothing waits any more")
	assert.Equal(t, want, deliveries.Counts())
}

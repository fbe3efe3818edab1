package door

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channel"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channeltest"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/tasks"
)

// TestTheQueueOfTheCommandsHasANameForAMQP, also with the longest prefix: a longer name ends the connection of all handlers.
func TestTheQueueOfTheCommandsHasANameForAMQP(t *testing.T) {
	const longest = 244
	require.NoError(t, naming.Prefix(strings.Repeat("p", longest)).Validate())
	require.Error(t, naming.Prefix(strings.Repeat("p", longest+1)).Validate())
	for _, prefix := range []string{"retry", strings.Repeat("p", 212), strings.Repeat("p", 213), strings.Repeat("p", longest)} {
		names, exchange := map[string]bool{}, naming.Prefix(prefix).OrderControl()
		for range 10 {
			queue := commandsOf(exchange)
			names[queue] = true
			assert.LessOrEqual(t, len(queue), channel.MaxShortString)
			assert.True(t, strings.HasPrefix(queue, exchange+"."), "users may configure what has that: %s", queue)
		}
		assert.Greater(t, len(names), 1)
	}
}

// deliver answers a question: the model of RabbitMQ has no direct replies.
func deliver(b *channeltest.Broker, asked channeltest.Message, a command.Answer) {
	body, _ := json.Marshal(a)
	arguments := binary.BigEndian.AppendUint64(channeltest.Short(asked.Consumer), 1)
	b.Method(asked.Channel, 60, 60, append(arguments, 0, 0, 0))
	header := binary.BigEndian.AppendUint64([]byte{0, 60, 0, 0}, uint64(len(body)))
	correlation := asked.Header[14:][1+asked.Header[14]:] // behind the content type
	header = append(append(header, 0x04, 0), correlation[:1+correlation[0]]...)
	b.Frame(2, asked.Channel, header)
	b.Frame(3, asked.Channel, body)
}

func controlOf(t *testing.T, b *channeltest.Broker) *control {
	b.Closing.Store(true)
	connection, err := publisher.Open(publisher.Config{Wire: wire.Config{URI: "amqp://user:password@" + b.Address}}, nil)
	require.NoError(t, err)
	return &control{exchange: "retry.order", publishing: connection, logger: watermill.NopLogger{},
		Tasks: tasks.New(context.Background())}
}

// Under an alarm the broker reads nothing more from a connection that has published. The handler consumes all the same:
// that is what empties the broker. Close waits for no answer, either, also where the process asks after a reconnect.
func TestAHandlerWithAKeyBeginsUnderAnAlarm(t *testing.T) {
	for name, ask := range map[string]func(*control){
		"it begins":       func(c *control) { c.addKeyed(keyed{"deliver", "webhooks", gate.New(16)}) },
		"it is connected": func(c *control) { c.Go(func() { c.tell(c.Context) }) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, alarm := channeltest.Serve(t), make(chan struct{})
			c := controlOf(t, b)
			go func() {
				<-b.Published
				b.Deaf.Store(true)
				b.Alarm()
				close(alarm)
				for b.Frame(8, 0, nil) { // a broker sends heartbeats also while it reads nothing
					time.Sleep(time.Second)
				}
			}()
			for what, do := range []func(){
				func() { ask(c); <-alarm }, c.Close, func() { _ = c.publishing.Close() },
			} {
				done := make(chan struct{})
				go func() { do(); close(done) }()
				select {
				case <-done:
				case <-time.After(tellTimeout - 2*time.Second): // it does not wait until the process asks no more
					require.Fail(t, "it does not return", []string{"addKeyed", "Close", "Close of the connection"}[what])
				}
			}
			assert.Eventually(t, func() bool {
				stacks := make([]byte, 1<<20)
				return !strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "door.within")
			}, time.Minute, time.Millisecond, "it asks though the connection is closed")
		})
	}
}

// All processes tell one another after a restart of the broker.
func TestAProcessWithoutLimitsDoesNotAnswer(t *testing.T) {
	b := channeltest.Serve(t)
	c := controlOf(t, b)
	body, err := json.Marshal(command.Request{Do: command.Tell})
	require.NoError(t, err)
	tell := amqp091.Delivery{ReplyTo: command.ReplyQueue + ".7", CorrelationId: "1", Body: body}
	c.answer(t.Context(), tell)
	assert.Empty(t, b.Published)
	tell.Body, err = json.Marshal(command.Request{
		Do: command.Tell, Told: []command.Request{{Key: "7", Lasts: time.Hour, At: 1}},
	})
	require.NoError(t, err)
	c.answer(t.Context(), tell)
	assert.Len(t, b.Published, 1, "the one that asks has told it a limit")
}

// The first answer may come from another app of the broker, from a process that has begun at the same moment, or from
// this process itself: it knows no limit.
func TestLimitsAreThoseOfAnyAnswer(t *testing.T) {
	b := channeltest.Serve(t)
	go func() {
		asked := <-b.Published
		deliver(b, asked, command.Answer{Host: "invoices"})
		deliver(b, asked, command.Answer{Host: "webhooks", Told: []command.Request{
			{Queue: "webhooks", Do: command.Limit, Key: "7", Lasts: time.Hour, At: 1},
		}})
	}()
	c := controlOf(t, b)
	g := gate.New(16)
	c.addKeyed(keyed{"deliver", "webhooks", g})
	assert.Len(t, g.Keys(), 1)
}

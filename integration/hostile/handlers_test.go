package hostile_test

import (
	"context"
	"maps"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestHandlersThatModifyTheirMessage: the copy is the message as it was received.
func TestHandlersThatModifyTheirMessage(t *testing.T) {
	t.Parallel()
	replace := map[string]func(*message.Message){
		"nils the payload":        func(msg *message.Message) { msg.Payload = nil },
		"nils the metadata":       func(msg *message.Message) { msg.Metadata = nil },
		"nils everything":         func(msg *message.Message) { msg.Payload, msg.Metadata, msg.UUID = nil, nil, "" },
		"nils it and panics":      func(msg *message.Message) { msg.Payload, msg.Metadata = nil, nil; panic("modified") },
		"nils it and exits":       func(msg *message.Message) { msg.Payload, msg.Metadata = nil, nil; runtime.Goexit() },
		"takes another's context": func(msg *message.Message) { msg.SetContext(context.Background()) },
		"cancels its own context": func(msg *message.Message) {
			ctx, cancel := context.WithCancel(msg.Context())
			cancel()
			msg.SetContext(ctx)
		},
	}
	write := map[string]func(*message.Message){
		"writes the payload":   func(msg *message.Message) { clear(msg.Payload) },
		"appends in place":     func(msg *message.Message) { msg.Payload = append(msg.Payload[:0], "other"...) },
		"empties the metadata": func(msg *message.Message) { clear(msg.Metadata) },
		"forges a record": func(msg *message.Message) {
			msg.Metadata[recordkey.Failures] = "1000"
			msg.Metadata[recordkey.DueAt] = "2020-01-01T00:00:00.000Z"
			msg.Metadata[recordkey.Properties] = "garbled"
			msg.Metadata[recordkey.UnmarshalError] = "forged"
		},
		"fills the metadata": func(msg *message.Message) { msg.Metadata["huge"] = strings.Repeat("x", 1<<20) },
	}
	for _, deep := range []bool{false, true} {
		name, changes := "replace", replace
		if deep {
			name, changes = "write into, with DeepCopy", write
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := testapp.New(t, func(c *config.Config) { c.Policy.DeepCopy = deep })
			queue := a.Queue("orders")
			calls := testapp.NewLedger()
			a.Handle(queue, 4, func(msg *message.Message) error {
				identity := strings.TrimSpace(string(msg.Payload))
				assert.Equal(t, "id "+identity, msg.UUID)
				assert.Equal(t, "value of "+identity, msg.Metadata["key"])
				calls.Add(identity)
				changes[identity](msg)
				return errDown
			})
			a.Run()
			for identity := range changes {
				testapp.Send(t, "", queue, amqp091.Publishing{
					Body: []byte(identity), ContentType: "text/plain",
					Headers: amqp091.Table{"_watermill_message_uuid": "id " + identity, "key": "value of " + identity, "n": int32(1)},
				})
			}
			got := letters(t, queue, len(changes))
			assert.Equal(t, keys(changes), keys(got))
			for identity, letter := range got {
				exhausted(t, letter, "3")
				assert.Equal(t, amqp091.Table{"_watermill_message_uuid": "id " + identity, "key": "value of " + identity,
					"n": int32(1)}, own(letter))
				assert.Equal(t, "text/plain", letter.ContentType)
			}
			same(t, 3, calls.Counts(), keys(changes)...)
			empty(t, queue)
		})
	}
}

// TestHandlersThatSettleTheirMessage: a handler acks or nacks its message itself, and then fails, panics, exits or
// succeeds. Its ack or nack stays, and no copy is published.
func TestHandlersThatSettleTheirMessage(t *testing.T) {
	t.Parallel()
	a := testapp.New(t)
	queue := a.Queue("orders")
	endings := map[string]func() error{
		"fails": func() error { return errDown }, "panics": func() error { panic("late") },
		"exits": func() error { runtime.Goexit(); return nil }, "succeeds": func() error { return nil },
	}
	calls, nacked := testapp.NewLedger(), map[string]bool{}
	var all []string
	for ending := range endings {
		for _, settle := range []string{"acks and ", "nacks once and "} {
			all = append(all, settle+ending)
			nacked[settle+ending] = settle[0] == 'n'
		}
	}
	a.Handle(queue, 4, func(msg *message.Message) error {
		identity := string(msg.Payload)
		call := calls.Add(identity)
		switch {
		case !nacked[identity]:
			msg.Ack()
		case call == 1:
			msg.Nack()
		default:
			return nil
		}
		_, ending, _ := strings.Cut(identity, "and ")
		return endings[ending]()
	})
	a.Run()
	for _, identity := range all {
		testapp.Send(t, "", queue, amqp091.Publishing{Body: []byte(identity)})
	}
	want := map[string]int{}
	for _, identity := range all {
		want[identity] = 1
		if nacked[identity] {
			want[identity] = 2
		}
	}
	// A message that was given back can be in no queue for a moment.
	broker.Eventually(t, soon, func() bool { return maps.Equal(want, calls.Counts()) },
		"the messages that were given back come again")
	empty(t, queue)
	assert.Equal(t, want, calls.Counts())
	assert.Empty(t, a.Events(retry.Retried))
	assert.Empty(t, a.Events(retry.DeadLettered))
	assert.Zero(t, testapp.Depth(t, queue+".dead"))
}

// TestHandlerThatNeverReturns: the router closes after its CloseTimeout. The next app gets the message, and no failure
// is counted.
func TestHandlerThatNeverReturns(t *testing.T) {
	t.Parallel()
	const closeTimeout = 2 * time.Second
	stuck := testapp.NewParts(t)
	var err error
	stuck.Router, err = message.NewRouter(message.RouterConfig{CloseTimeout: closeTimeout}, stuck.Log)
	require.NoError(t, err)
	queue := stuck.Queue("orders")
	started, release, ended := testapp.NewLedger(), make(chan struct{}), make(chan struct{}, 2)
	stuck.Handle(queue, 2, func(msg *message.Message) error {
		defer func() { ended <- struct{}{} }()
		started.Add(string(msg.Payload))
		<-release
		return errDown // long after the shutdown: the message has been redelivered to another app, so this is not a failure
	})
	done := make(chan error, 1)
	go func() { done <- stuck.Router.Run(context.Background()) }()
	<-stuck.Router.Running()
	for _, identity := range []string{"one", "two", "three"} {
		testapp.Send(t, "", queue, amqp091.Publishing{Body: []byte(identity)})
	}
	started.Wait(t, 2, soon)
	began := time.Now()
	assert.ErrorContains(t, stuck.Router.Close(), "timeout")
	assert.WithinDuration(t, began.Add(closeTimeout), time.Now(), 1500*time.Millisecond)

	next := testapp.NewParts(t, func(b *config.Config) { b.Prefix = stuck.Name })
	calls := testapp.NewLedger()
	next.Handle(queue, 2, func(msg *message.Message) error {
		assert.NotContains(t, msg.Metadata, recordkey.Failures)
		calls.Add(string(msg.Payload))
		return nil
	})
	next.Run()
	calls.Wait(t, 3, soon)
	close(release)
	for range 2 {
		<-ended
	}
	empty(t, queue)
	time.Sleep(500 * time.Millisecond) // longer than the tier's delay: a copy that a stuck handler publishes would be back
	same(t, 1, calls.Counts(), "one", "three", "two")
	assert.Zero(t, testapp.Depth(t, queue+".dead"))
	assert.Empty(t, stuck.Events(retry.Retried))
	require.NoError(t, stuck.Builder.Close())
	select {
	case <-done:
	case <-time.After(soon):
		t.Error("Router.Run did not return")
	}
}

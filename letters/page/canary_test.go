package page_test

import (
	"context"
	"net/url"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/page"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// TestACanaryNeedsAConsumer: a canary that no handler calls cannot die, so it proves nothing about the other letters.
func TestACanaryNeedsAConsumer(t *testing.T) {
	for name, row := range map[string]struct {
		consumes time.Duration // how long an app consumes the work queue
		sent     int
		want     string
	}{
		"never":         {0, 0, "the queue &#34;orders&#34; has no consumer: its handler is paused, or its app is down."},
		"for a moment":  {5 * time.Second, 10, "the queue &#34;orders&#34; has no consumer: its handler is paused, or its app is down. So it is not known whether the canary was handled."},
		"all the while": {time.Hour, 12, "Done."},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				broker := model.New(model.Config{})
				defer broker.Stop()
				broker.DeclareQueue("orders", amqp091.Table{"x-queue-type": "quorum"})
				broker.DeclareQueue("poison", amqp091.Table{"x-queue-type": "quorum"})
				for range 12 {
					broker.Publish("", "poison", amqp091.Publishing{Headers: amqp091.Table{
						"reason_poisoned": "down", "topic_poisoned": "orders"}})
				}
				client := amqp091.Config{Dial: broker.Dial, Heartbeat: time.Hour}
				if row.consumes > 0 {
					connection, err := amqp091.DialConfig("amqp://guest:guest@model:5672/", client)
					require.NoError(t, err)
					channel, err := connection.Channel()
					require.NoError(t, err)
					_, err = channel.Consume("orders", "", true, false, false, false, nil)
					require.NoError(t, err)
					time.AfterFunc(row.consumes, func() { _ = connection.Close() })
				}
				store, err := deadletter.Open(
					deadletter.Config{URI: "amqp://guest:guest@model:5672/", AMQP: &client}, nil)
				require.NoError(t, err)
				defer store.Close()
				s := setup(t, some(), func(c *page.Config) {
					c.Store = store
					c.Status = func(context.Context) (letters.Status, error) { return letters.Status{}, nil }
				})
				defer s.page.Close()
				id := s.confirmed(s.post("redrive?queue=poison&all=1", nil))
				s.post("redrive", url.Values{"step": {"start"}, "run": {id}})
				time.Sleep(2 * time.Minute)
				text := s.ended(id)
				assert.Contains(t, text, row.want)
				assert.Regexp(t, `id="done">`+strconv.Itoa(row.sent)+`<`, text)
			})
		})
	}
}

package simulation

import (
	"cmp"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/integration/simulation/model"
	"github.com/tieredretry/watermill-retry/retry"
)

// An app with watermill-amqp's subscriber starts although the broker cannot declare for a moment, and says so where the
// broker never answers.
func TestTheBuilderDeclaresAgainAtTheStart(t *testing.T) {
	for name, row := range map[string]struct {
		internalErrors int32 // the broker's answers to the first declarations
		silent         bool
		closes         time.Duration // when the builder is closed; 0: at the end
		want           string
	}{
		"an internal error, twice": {internalErrors: 2},
		"an internal error, ever":  {internalErrors: 1000, want: "tried for 30s: "},
		"no answer":                {silent: true, want: "the broker has not finished this within 5m0s"},
		"no answer before Close":   {silent: true, closes: time.Second, want: "the builder is closed"},
		"an error before Close":    {internalErrors: 1000, closes: time.Second, want: "the builder is closed"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				broker := model.New(model.Config{Fault: func(e model.Event) model.Fault {
					if row.silent && e.Name == "watermill-retry topology" && e.Method == "queue.declare" {
						return model.Unanswered
					}
					return model.None
				}})
				defer broker.Stop()
				var left atomic.Int32
				left.Store(row.internalErrors)
				broker.Refuse(func(string) uint16 {
					if left.Add(-1) >= 0 {
						return amqp091.InternalError
					}
					return 0
				})
				own := amqp.NewDurableQueueConfig("amqp://guest:guest@model:5672/")
				own.Connection.AmqpConfig = &amqp091.Config{Dial: broker.Dial, Heartbeat: time.Hour}
				builder, err := config.NewBuilder(config.Config{AMQP: own, Policy: retry.Policy{Schedule: planOf(1).schedule}})
				require.NoError(t, err)
				defer builder.Close()
				subscriber, err := amqp.NewSubscriber(builder.SubscriberConfig(), watermill.NopLogger{})
				require.NoError(t, err)
				defer subscriber.Close()
				if row.closes > 0 {
					time.AfterFunc(row.closes, func() { assert.NoError(t, builder.Close()) })
				}
				began := time.Now()
				err = subscriber.SubscribeInitialize(topic)
				if row.want == "" {
					require.NoError(t, err)
					return
				}
				assert.ErrorContains(t, err, row.want)
				assert.LessOrEqual(t, time.Since(began), cmp.Or(row.closes, 5*time.Minute)+5*time.Second)
			})
		})
	}
}

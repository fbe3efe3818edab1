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
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
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
				builder, err := config.NewBuilder(config.Config{AMQP: onModel(broker), Policy: retry.Policy{Schedule: planOf(1).schedule}})
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

// A scriptedTopology answers each call for the app's own topology with the next error, and a call without one declares
// it.
type scriptedTopology struct {
	amqp.DefaultTopologyBuilder
	errs []error
}

func (s *scriptedTopology) BuildTopology(
	channel *amqp091.Channel, queue, exchange string, config amqp.Config, logger watermill.LoggerAdapter,
) error {
	if len(s.errs) == 0 {
		return s.DefaultTopologyBuilder.BuildTopology(channel, queue, exchange, config, logger)
	}
	err := s.errs[0]
	s.errs = s.errs[1:]
	return err
}

// The work queue is another one than that which was inspected. What declares the app's own topology again is tried, and
// ended, as the first declaration is.
func TestTheBuilderDeclaresAReplacedQueueAgain(t *testing.T) {
	differs := &amqp091.Error{Code: amqp091.PreconditionFailed, Server: true}
	busy := &amqp091.Error{Code: amqp091.InternalError, Server: true}
	for name, row := range map[string]struct {
		errs   []error
		silent bool // the broker answers no declaration of the app's own topology
		want   string
	}{
		"an internal error, twice": {errs: []error{differs, busy, busy}},
		"no answer before Close":   {errs: []error{differs}, silent: true, want: "the builder is closed"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				script := &scriptedTopology{errs: row.errs}
				broker := model.New(model.Config{Fault: func(e model.Event) model.Fault {
					if row.silent && e.Method == "queue.declare" && e.Connection == 3 {
						return model.Unanswered
					}
					return model.None
				}})
				defer broker.Stop()
				own := onModel(broker)
				own.TopologyBuilder = script
				builder, err := config.NewBuilder(config.Config{AMQP: own, Policy: retry.Policy{Schedule: planOf(1).schedule}})
				require.NoError(t, err)
				defer builder.Close()
				subscriber, err := amqp.NewSubscriber(builder.SubscriberConfig(), watermill.NopLogger{})
				require.NoError(t, err)
				defer subscriber.Close()
				time.AfterFunc(time.Minute, func() { assert.NoError(t, builder.Close()) })
				began := time.Now()
				err = subscriber.SubscribeInitialize(topic)
				assert.LessOrEqual(t, time.Since(began), time.Minute)
				if row.want == "" {
					require.NoError(t, err)
					return
				}
				assert.ErrorContains(t, err, row.want)
			})
		})
	}
}

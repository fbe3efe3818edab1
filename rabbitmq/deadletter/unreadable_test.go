package deadletter

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/letters"
)

// A letter that comes after its queue was counted ends the connection with which the look begins. It is named, as one
// that comes later: the broker is not away.
func TestTheFirstLetterCannotBeRead(t *testing.T) {
	redrive := func(ctx context.Context, store *Store, queue string) error {
		_, err := store.Redrive(ctx, queue, letters.Redrive{Progress: func(p letters.Progress) {
			assert.NotEqual(t, letters.Waiting, p.Phase, p.Err)
		}})
		return err
	}
	browse := func(ctx context.Context, store *Store, queue string) (failed error) {
		for _, err := range store.Browse(ctx, queue, letters.Filter{}) {
			failed = err
		}
		return failed
	}
	for name, row := range map[string]struct {
		look     func(context.Context, *Store, string) error
		declares int // before the letter comes
	}{
		"browse":  {browse, mostCounts},
		"redrive": {redrive, 2 + mostCounts}, // two for the lock
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const queue = "orders.dead"
				var broker *model.Broker
				declares := 0
				broker = model.New(model.Config{Fault: func(e model.Event) model.Fault {
					if e.Method == "queue.declare" && e.After {
						if declares++; declares == row.declares {
							go broker.Publish("", queue, amqp091.Publishing{Headers: nested(100)})
						}
					}
					return model.None
				}})
				defer broker.Stop()
				broker.DeclareQueue(queue, amqp091.Table{"x-queue-type": "quorum"})
				store, err := Open(Config{URI: "amqp://guest:guest@model:5672/",
					AMQP: &amqp091.Config{Dial: func(network, host string) (net.Conn, error) {
						conn, number, err := broker.DialNumbered(network, host)
						broker.Slow(number, time.Second, time.Second) // the letter is there before the next request
						return conn, err
					}}}, nil)
				require.NoError(t, err)
				defer store.Close()
				err = row.look(t.Context(), store, queue)
				require.ErrorContains(t, err, `the letter at place 1 of "orders.dead" cannot be read`)
			})
		})
	}
}

// A queue without a delivery limit cannot lose letters by connections that are lost: a call goes on after more of
// them than with a limit, also where a look cannot begin.
func TestADiscardGoesOnWhereLooksCannotBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const queue, most = "orders.retry.1s", mostBarren - 2 // a tier has no limit
		cuts, declares := 0, map[int]int{}
		broker := model.New(model.Config{Fault: func(e model.Event) model.Fault {
			if e.Method == "queue.declare" && !e.After {
				declares[e.Connection]++ // two for the lock
			}
			began := e.Method == "queue.declare" && declares[e.Connection] == 3
			if !e.After && cuts <= most && (cuts == 0 && e.Method == "basic.ack" || cuts > 0 && began) {
				cuts++
				return model.Reset
			}
			return model.None
		}})
		defer broker.Stop()
		broker.DeclareQueue(queue, nil)
		for range 3 {
			require.Equal(t, 1, broker.Publish("", queue, amqp091.Publishing{Body: []byte("order")}))
		}
		store, err := Open(Config{URI: "amqp://guest:guest@model:5672/", AMQP: &amqp091.Config{Dial: broker.Dial}}, nil)
		require.NoError(t, err)
		defer store.Close()
		summary, err := store.Discard(t.Context(), queue, letters.Discard{})
		require.NoError(t, err)
		assert.Equal(t, 3, summary.Done)
		assert.Greater(t, cuts, most)
	})
}

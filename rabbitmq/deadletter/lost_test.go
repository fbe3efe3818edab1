package deadletter

import (
	"testing"
	"testing/synctest"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/letters"
)

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

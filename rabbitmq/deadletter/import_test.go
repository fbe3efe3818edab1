package deadletter_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// onUnanswering runs a test on a broker that confirms nothing.
func onUnanswering(t *testing.T, test func(*testing.T, *model.Broker, *deadletter.Store)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broker := model.New(model.Config{Fault: func(e model.Event) model.Fault {
			if e.Method == "basic.publish" {
				return model.Unanswered
			}
			return model.None
		}})
		defer broker.Stop()
		broker.DeclareQueue("q.dead", amqp091.Table{"x-queue-type": "quorum"})
		store, err := deadletter.Open(deadletter.Config{URI: modelURI,
			AMQP: &amqp091.Config{Dial: broker.Dial, Heartbeat: time.Hour}}, nil)
		require.NoError(t, err)
		defer store.Close()
		test(t, broker, store)
	})
}

// TestARedriveStopsWhereNothingIsConfirmed: what is in flight may have arrived, stays, and is sent once.
func TestARedriveStopsWhereNothingIsConfirmed(t *testing.T) {
	onUnanswering(t, func(t *testing.T, broker *model.Broker, store *deadletter.Store) {
		broker.DeclareQueue("q", nil)
		for range 3 {
			broker.Publish("", "q.dead", amqp091.Publishing{})
		}
		summary, err := store.Redrive(t.Context(), "q.dead", letters.Redrive{})
		require.ErrorContains(t, err, `the work queue "q" confirms no letter within 1m0s`)
		assert.Equal(t, letters.Summary{Total: 3, Kept: 3, Doubtful: 3}, summary)
		assert.Equal(t, 3, broker.PurgeQueue("q.dead"))
	})
}

// While the broker confirms nothing, an import has about 32 MiB of lines in flight, and not 128 letters of any size.
func TestImportBoundsBytesInFlight(t *testing.T) {
	onUnanswering(t, func(t *testing.T, broker *model.Broker, store *deadletter.Store) {
		const lines, body = 100, 1 << 20
		text := fmt.Sprintf(`{"queue":"q.dead","exchange":"","routing_key":"q.dead","properties":{},"headers":{},"body":%q}`+"\n",
			base64.StdEncoding.EncodeToString(make([]byte, body)))
		read := 0
		var all []io.Reader
		for range lines {
			all = append(all, before(func() { read++ }), strings.NewReader(text))
		}
		time.AfterFunc(10*time.Second, broker.Stop)
		_, err := store.Import(t.Context(), io.MultiReader(all...), letters.Redrive{})
		require.Error(t, err)
		assert.Equal(t, 25+1, read, "each with its line, and one that waits for its place")
	})
}

// TestADryImportFindsItsQueues: it ends at the line at which the import would end.
func TestADryImportFindsItsQueues(t *testing.T) {
	onBoard(t, func(t *testing.T, b board) {
		b.broker.DeclareQueue("q.dead", nil)
		const line = `{"queue":"q.dead","exchange":"","routing_key":"q.dead","properties":{},"headers":{},"body":"eA=="}` + "\n"
		file := line + line + strings.ReplaceAll(line, "q.dead", "other.dead") + line
		for _, dry := range []bool{true, false} {
			summary, err := b.store.Import(t.Context(), strings.NewReader(file), letters.Redrive{DryRun: dry})
			require.ErrorIs(t, err, letters.ErrNoQueue)
			require.ErrorContains(t, err, "line 3: ")
			require.ErrorContains(t, err, `"other.dead"`)
			if dry { // else the other lines can be in flight
				assert.Equal(t, letters.Summary{Total: 2, Done: 2}, summary)
				assert.NotContains(t, err.Error(), "imported already")
			}
			summary, err = b.store.Import(t.Context(), strings.NewReader(file), letters.Redrive{DryRun: dry, To: "q.dead"})
			require.NoError(t, err)
			assert.Equal(t, letters.Summary{Total: 4, Done: 4}, summary)
		}
	})
}

// before is an empty reader that calls a function.
type before func()

func (f before) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}

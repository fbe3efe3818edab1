package conformance

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNATSHasNoRoomForWhatIsDue: the server gives a message up that it cannot store when it is due. Health and the log
// name it, and it comes back when there is room, once.
func TestNATSHasNoRoomForWhatIsDue(t *testing.T) {
	t.Parallel()
	const messages, limit = 100, 3 << 20
	for name, test := range map[string]struct {
		start  func(*testing.T) *natsNode
		filled string // the subject that takes the room
		tiers  bool   // the process delays the messages, and loses none from sight
	}{
		"the server": {start: func(t *testing.T) *natsNode { return startNATSWithLimit(t, limit) }, filled: "other"},
		"the account": {start: func(t *testing.T) *natsNode {
			n := startNATS(t)
			account := natsserver.JetStreamAccountLimits{
				MaxMemory: -1, MaxStore: limit, MaxStreams: -1, MaxConsumers: -1, MaxAckPending: -1,
				MemoryMaxStreamBytes: -1, StoreMaxStreamBytes: -1,
			}
			require.NoError(t, n.server.GlobalAccount().UpdateJetStreamLimits(
				map[string]natsserver.JetStreamAccountLimits{"": account}))
			return n
		}, filled: "other"},
		"the stream": {start: func(t *testing.T) *natsNode {
			n := startNATS(t)
			_, err := n.jetStream().CreateStream(t.Context(), jetstream.StreamConfig{Name: "retry",
				Subjects: []string{"retry.>"}, Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew,
				MaxBytes: limit})
			require.NoError(t, err)
			return n
		}, filled: "retry.dead.other", tiers: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var (
				n        *natsNode
				js       jetstream.JetStream
				p        *natsProcess
				seen     *natsCalls
				logs     *watermill.CaptureLoggerAdapter
				failures int
				delay    = 15 * time.Second
			)
			// fill reports whether the store was full before a message was due.
			fill := func() bool {
				n = test.start(t)
				js = n.jetStream()
				_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "other", Subjects: []string{"other"}})
				require.NoError(t, err)
				seen, logs = newNATSCalls(), watermill.NewCaptureLogger()
				calls := seen
				p = runNATSWithLog(t, n.config(delay), logs, func(msg *message.Message) error {
					if calls.add(msg) == 0 {
						return errDown
					}
					return nil
				})
				payload := make([]byte, 4000)
				for i := range messages {
					require.NoError(t, p.Publisher().Publish("orders", message.NewMessage(fmt.Sprint(i), payload)))
				}
				seen.await(t, messages, 1)
				failures = len(logs.Captured()[watermill.ErrorLogLevel])
				for size := 64 << 10; size > 0; size /= 2 {
					for {
						if _, err = js.Publish(t.Context(), test.filled, make([]byte, size)); err != nil {
							break
						}
					}
					require.True(t, errors.As(err, new(*jetstream.APIError)), err)
				}
				return time.Since(seen.last()) < delay
			}
			for ; !fill(); delay *= 2 { // this machine is slow
				p.stop()
				n.stop()
			}
			assert.EventuallyWithT(t, func(c *assert.CollectT) {
				assert.NotEmpty(c, logs.Captured()[watermill.ErrorLogLevel][failures:])
			}, patience, 100*time.Millisecond)
			if !test.tiers {
				assert.EventuallyWithT(t, func(c *assert.CollectT) {
					health := p.Health()
					if assert.Len(c, health.Tiers, 1) {
						assert.Equal(c, "retry.wait.>", health.Tiers[0].Queue)
						assert.Positive(c, health.Tiers[0].Overdue)
					}
					assert.Contains(c, health.TiersError, "resource")
				}, patience, 100*time.Millisecond)
				assert.NoError(t, p.Health().Ready(), "another instance could do no more")
			}

			name, err := js.StreamNameBySubject(t.Context(), test.filled)
			require.NoError(t, err)
			stream, err := js.Stream(t.Context(), name)
			require.NoError(t, err)
			require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject(test.filled)))
			seen.await(t, messages, 2)
			assert.EventuallyWithT(t, func(c *assert.CollectT) {
				assert.Empty(c, n.left())
				assert.Empty(c, p.Health().Tiers)
				assert.Empty(c, p.Health().TiersError)
			}, patience, 100*time.Millisecond)
			p.stop()
			published := 0
			for _, line := range logs.Captured()[watermill.InfoLogLevel] {
				if n, is := line.Fields["messages"].(int); is {
					published += n
				}
			}
			assert.LessOrEqual(t, published, messages, "a look publishes each message once")
			for id, at := range seen.all {
				assert.Len(t, at, 2, id)
				assert.GreaterOrEqual(t, at[1].Sub(at[0]), delay, id)
			}
		})
	}
}

// TestNATSStreamIsMadeToLoseMessages: an operator changes the stream while an app runs, so that it deletes messages.
func TestNATSStreamIsMadeToLoseMessages(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	p := runNATS(t, n.config(time.Hour), func(*message.Message) error { return nil })
	js := n.jetStream()
	stream, err := js.Stream(t.Context(), "retry")
	require.NoError(t, err)
	config := stream.CachedInfo().Config
	config.MaxBytes = 1 << 30
	_, err = js.UpdateStream(t.Context(), config)
	require.NoError(t, err)
	assert.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Contains(c, p.Health().TiersError, "it has a limit and discards old messages")
	}, patience, 100*time.Millisecond)
}

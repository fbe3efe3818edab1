package conformance

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
	"github.com/tieredretry/watermill-retry/backends/natsretry"
)

// TestNATSHasNoRoomForWhatIsDue: the server gives a message up that it cannot store when it is due. Health and the log
// name it, and it comes back when there is room, once.
func TestNATSHasNoRoomForWhatIsDue(t *testing.T) {
	t.Parallel()
	const messages, limit = 100, 3 << 20
	for name, start := range map[string]func(*testing.T) *natsNode{
		"the server": func(t *testing.T) *natsNode { return startNATS(t, limit) },
		"the account": func(t *testing.T) *natsNode {
			n := startNATS(t)
			account := natsserver.JetStreamAccountLimits{
				MaxMemory: -1, MaxStore: limit, MaxStreams: -1, MaxConsumers: -1, MaxAckPending: -1,
				MemoryMaxStreamBytes: -1, StoreMaxStreamBytes: -1,
			}
			require.NoError(t, n.server.GlobalAccount().UpdateJetStreamLimits(
				map[string]natsserver.JetStreamAccountLimits{"": account}))
			return n
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var (
				n        *natsNode
				js       jetstream.JetStream
				p        *app
				seen     *ledger
				failures int
				delay    = 15 * time.Second
			)
			faults := func() int { return len(p.logged(watermill.ErrorLogLevel, "")) }
			// fill reports whether the store was full before a message was due.
			fill := func() bool {
				n, seen = start(t), newLedger()
				js = n.jetStream()
				_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "other", Subjects: []string{"other"}})
				require.NoError(t, err)
				p = n.app(delay).bills(seen.failing(1))
				for _, id := range ids(messages) {
					require.NoError(t, p.Publisher().Publish(orders, message.NewMessage(id, make([]byte, 4000))))
				}
				seen.await(t, messages, 0)
				failures = faults()
				for size := 64 << 10; size > 0; size /= 2 {
					for err = nil; err == nil; {
						_, err = js.Publish(t.Context(), "other", make([]byte, size))
					}
					require.ErrorAs(t, err, new(*jetstream.APIError))
				}
				return time.Since(seen.of(id(messages - 1))[0].at) < delay
			}
			for ; !fill(); delay *= 2 { // this machine is slow
				p.stop()
				n.stop()
			}
			wait.Until(t, func() bool { return faults() > failures }, "the log names it")
			wait.Until(t, func() bool {
				health := p.Health()
				return len(health.Tiers) == 1 && health.Tiers[0].Queue == "retry.wait.>" &&
					health.Tiers[0].Overdue > 0 && strings.Contains(health.TiersError, "resource")
			}, "Health names it")
			assert.NoError(t, p.Health().Ready(), "another instance could do no more")

			stream, err := js.Stream(t.Context(), "other")
			require.NoError(t, err)
			require.NoError(t, stream.Purge(t.Context()))
			seen.await(t, messages, 1)
			n.awaitNothing()
			wait.Until(t, func() bool {
				health := p.Health()
				return len(health.Tiers) == 0 && health.TiersError == ""
			}, "Health is well")
			p.stop()
			published := 0
			for _, line := range p.logged(watermill.InfoLogLevel, "") {
				if n, is := line.Fields["messages"].(int); is {
					published += n
				}
			}
			assert.LessOrEqual(t, published, messages, "a look publishes each message once")
			assert.Zero(t, seen.duplicates())
			seen.neverEarly(t, monotonic, delay)
		})
	}
}

// TestNATSStreamIsMadeToLoseMessages: an operator changes the stream while an app runs, so that it loses or hides
// messages, or makes one before that cannot be changed.
func TestNATSStreamIsMadeToLoseMessages(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	js := n.jetStream()
	for prefix, row := range map[string]struct {
		change func(*jetstream.StreamConfig)
		fault  string
	}{
		"limit": {
			func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 30 }, "it has a limit, at which it deletes messages that wait",
		},
		"size": {func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1 << 20 }, "its MaxMsgSize is 1048576"},
		"transform": {func(c *jetstream.StreamConfig) {
			c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "transform.>", Destination: "other.>"}
		}, `its SubjectTransform from "transform.>" to "other.>"`},
		"delete": {func(c *jetstream.StreamConfig) { c.DenyDelete = true }, "its DenyDelete is true"},
	} {
		t.Run(prefix, func(t *testing.T) {
			t.Parallel()
			config := n.config(time.Hour)
			config.Prefix = prefix
			p := onNATS(t, config).bills(nothing)
			stream, err := js.Stream(t.Context(), prefix)
			require.NoError(t, err)
			changed := stream.CachedInfo().Config
			row.change(&changed)
			_, err = js.UpdateStream(t.Context(), changed)
			require.NoError(t, err)
			wait.Until(t, func() bool { return strings.Contains(p.Health().TiersError, row.fault) }, "Health names it")
		})
	}
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "async", Subjects: []string{"async.>"}, Retention: jetstream.WorkQueuePolicy, AllowMsgSchedules: true,
		AllowRollup: true, PersistMode: jetstream.AsyncPersistMode,
	})
	require.NoError(t, err)
	config := n.config(time.Hour)
	config.Prefix = "async"
	_, err = natsretry.Connect(config, nil)
	require.ErrorContains(t, err, "the stream async exists and cannot have the retries")
	require.ErrorContains(t, err, "its PersistMode is async")
}

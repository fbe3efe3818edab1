package conformance

import (
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
)

// TestKafkaStandsStill: no handler is healthy while the only broker is stopped, or while its topic does not exist. Then
// it goes on. A publish to a topic that does not exist says so.
func TestKafkaStandsStill(t *testing.T) {
	t.Parallel()
	brokers, nodes := startKafkaCluster(t, 1, sarama.NewConfig(), "auto.create.topics.enable=false")
	k := kafkaOn(t, brokers)
	k.make(k.orders, 4)
	seen := newLedger()
	app := k.app(time.Second).bills(seen.failing(1))
	app.publish("first")
	seen.await(t, 1, 1)
	began := time.Now()
	health := func(says, state string) {
		t.Helper()
		wait.Until(t, func() bool {
			err := app.Health().Ready()
			return says == "" && err == nil || says != "" && err != nil && strings.Contains(err.Error(), says)
		}, "%s", state)
		t.Logf("%v after %v: %v", state, time.Since(began), app.Health().Ready())
		began = time.Now()
	}
	health("", "it is ready")
	resume := nodes[0].Pause()
	health("cannot read", "a broker that is stopped")
	resume()
	health("", "it runs again")
	app.publish("second")
	seen.await(t, 2, 1)

	require.NoError(t, k.admin.DeleteTopic(k.orders))
	health("does not exist", "a topic that is deleted")
	k.make(k.orders, 4)
	health("", "it is made again")
	app.publish("third")
	seen.await(t, 3, 1)

	missing := k.name + "-invoices"
	publish := func() error { return app.Publisher().Publish(missing, message.NewMessage("fourth", nil)) }
	for range 5 {
		require.ErrorContains(t, publish(), `"`+missing+`" does not exist`)
	}
	k.make(missing, 1)
	wait.Until(t, func() bool { return publish() == nil }, "a publish succeeds")

	require.NoError(t, k.admin.DeleteTopic(k.back()))
	wait.Until(t, func() bool { return len(k.describe(k.back()).Partitions) == 4 }, "a topic of the retries is made again")
	app.publish("fifth")
	seen.await(t, 4, 1)
	health("", "all goes on")
	for _, line := range app.logs.Captured()[watermill.ErrorLogLevel] {
		t.Log(line.Time.Format(time.TimeOnly), line.Msg, line.Err, line.Fields)
	}
}

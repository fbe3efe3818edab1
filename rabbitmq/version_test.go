package rabbitmq

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

func TestWhatBrokersDo(t *testing.T) {
	for text, want := range map[string]struct{ drops, transient, cycles bool }{
		"3.10.8":     {},
		"3.12.14":    {},
		"3.13.0":     {cycles: true},
		"3.13.2":     {cycles: true},
		"3.13.3":     {},
		"4.0.5":      {drops: true},
		"4.2.9":      {drops: true},
		"4.3.6":      {transient: true},
		"4.3.0-rc.1": {transient: true},
		"4.10.0":     {transient: true},
		"5.0.0":      {transient: true},
		"":           {},
		"latest":     {},
	} {
		v := parseVersion(text)
		assert.Equal(t, want.drops, v.dropsAtDeliveryLimit(), "%s drops at the delivery limit", text)
		assert.Equal(t, want.transient, v.refusesTransient(), "%s refuses transient queues", text)
		assert.Equal(t, want.cycles, v.losesCycles(), "%s loses cycles", text)
	}
}

func TestDangerousCombinationsAreWarnedOfOnce(t *testing.T) {
	for name, row := range map[string]struct {
		tiers   topology.QueueType
		version string
		want    int
	}{
		"sound":         {topology.Quorum, "4.3.6", 0},
		"cycle bug":     {topology.Quorum, "3.13.1", 1},
		"classic tiers": {topology.Classic, "3.10.8", 1},
		"both":          {topology.Classic, "3.13.1", 2},
	} {
		t.Run(name, func(t *testing.T) {
			logs := watermill.NewCaptureLogger()
			w := &workQueues{config: Config{Config: topology.Config{QueueType: row.tiers}}, warned: map[string]bool{}}
			for range 3 {
				require.NoError(t, w.judgeBroker(topology.Queue{Name: "orders", Durable: true}, parseVersion(row.version), logs))
			}
			assert.Len(t, logs.Captured()[watermill.ErrorLogLevel], row.want)
		})
	}
	w := &workQueues{}
	err := w.judgeBroker(topology.Queue{Name: "orders"}, parseVersion("4.3.0"), watermill.NopLogger{})
	require.ErrorIs(t, err, topology.ErrTransientQueue)
	assert.ErrorContains(t, err, "orders")
	assert.NoError(t, w.judgeBroker(topology.Queue{Name: "orders"}, parseVersion("4.2.0"), watermill.NopLogger{}))
}

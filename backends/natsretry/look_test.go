package natsretry

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/internal/operatetest"
)

// TestRulesOfNATS: each rule finds its fault in what a server answers, and none in one that is well.
func TestRulesOfNATS(t *testing.T) {
	t.Parallel()
	stream := func(cluster string, change func(*jetstream.StreamConfig)) func(*operate.Checked) {
		config := jetstream.StreamConfig{
			Name: "retry", Subjects: []string{"retry.>"}, Retention: jetstream.WorkQueuePolicy, Replicas: 3,
			AllowMsgSchedules: true, Metadata: map[string]string{levelKey: "2", versionKey: "2.12.1"},
		}
		if change != nil {
			change(&config)
		}
		return func(checked *operate.Checked) {
			r := &reader{server: &server{Config: Config{Prefix: "retry"}, stream: "retry"}}
			r.checkStream(checked, config, cluster)
		}
	}
	account := func(used, most uint64) func(*operate.Checked) {
		tier := jetstream.Tier{Store: used, Limits: jetstream.AccountLimits{MaxStore: int64(most)}}
		return func(checked *operate.Checked) { checkAccount(checked, &jetstream.AccountInfo{Tier: tier}) }
	}
	tiers := func(checked *operate.Checked) {
		checkAccount(checked, &jetstream.AccountInfo{Tiers: map[string]jetstream.Tier{
			"R3": {Store: 91, Limits: jetstream.AccountLimits{MaxStore: 100}}, "R1": {Store: 1, Limits: jetstream.AccountLimits{MaxStore: 100}},
		}})
	}
	other := func(config jetstream.StreamConfig) func(*operate.Checked) {
		config.Name = "own"
		return func(checked *operate.Checked) {
			(&reader{server: &server{stream: "retry"}}).checkOther(checked, config)
		}
	}
	for name, row := range map[string]struct {
		look                func(*operate.Checked)
		rule, subject, what string
	}{
		"a stream that is well": {stream("", nil), "", "", ""},
		"a cluster":             {stream("eu", nil), "", "", ""},
		"an old server": {stream("", func(c *jetstream.StreamConfig) { c.Metadata = map[string]string{versionKey: "2.11.0"} }),
			"version", "stream retry", `"2.11.0"`},
		"an age": {stream("", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }), "limits", "stream retry", "MaxAge is 1h"},
		"in memory": {stream("", func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }), "limits", "stream retry",
			"which a restart of the server empties"},
		"one replica": {stream("eu", func(c *jetstream.StreamConfig) { c.Replicas = 1 }), "replicas", "stream retry",
			"on 1 servers of the cluster eu"},
		"one server":            {stream("", func(c *jetstream.StreamConfig) { c.Replicas = 1 }), "", "", ""},
		"no limit":              {account(1<<40, 0), "", "", ""},
		"room":                  {account(90, 100), "", "", ""},
		"nearly full":           {account(91, 100), "storage", "account ", "91 of 100 bytes"},
		"another stream":        {other(jetstream.StreamConfig{Subjects: []string{"own.>"}, Sources: []*jetstream.StreamSource{{Name: "orders"}}}), "", "", ""},
		"a mirror":              {other(jetstream.StreamConfig{Mirror: &jetstream.StreamSource{Name: "retry"}}), "overlap", "stream own", "it copies the stream retry"},
		"all subjects":          {other(jetstream.StreamConfig{Subjects: []string{"*.created"}}), "overlap", "stream own", "*.created is wider"},
		"a tier is nearly full": {tiers, "storage", "account R3", "91 of 100 bytes"},
	} {
		t.Run(name, func(t *testing.T) { operatetest.Finds(t, row.look, row.rule, row.subject, row.what) })
	}
}

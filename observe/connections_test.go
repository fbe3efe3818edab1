package observe_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	otelmetric "go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/observe"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestGaugesAreThoseOfTheHandler(t *testing.T) {
	t.Parallel()
	a := newApp(t)
	keys := map[string]retry.KeyHealth{"7": {Paused: "slow", Limit: 7, Parked: 30}, "8": {Paused: "failing"}, "9": {Parked: 1}}
	a.subscriptions( // the holding, the pauses and the keys are those of the handler
		retry.SubscriptionHealth{
			Name: handler, Topic: "orders", Consuming: true, InFlight: 3, Calls: 2, Concurrency: 16, Prefetch: 32, Holding: 2, Paused: []string{"failing", "paused"},
			Keys: keys,
		},
		retry.SubscriptionHealth{
			Name: handler, Topic: "returns", InFlight: 4, Calls: 3, Concurrency: 16, Prefetch: 20, Holding: 2, Paused: []string{"failing", "paused"},
			Keys: keys,
		},
		retry.SubscriptionHealth{Name: "mail", Topic: "orders", Consuming: true, Queue: "mails", OrderWaiting: 7, Blocked: make([]string, 3)},
		retry.SubscriptionHealth{Name: "mail", Topic: "letters", Consuming: true},
		retry.SubscriptionHealth{Name: "mail", Topic: "letters"},
		retry.SubscriptionHealth{Name: "mail", Topic: "letters", Consuming: true},
	)
	registry := register(t, observe.Config{}, a)
	for name, want := range map[string][]string{
		"in_flight": {`{handler="billing"} 7.0`, `{handler="mail"} 0.0`},
		"calls":     {`{handler="billing"} 5.0`, `{handler="mail"} 0.0`},

		"waiting_age_seconds": nil, // the backend does not show what waits
		"prefetch":            {`{handler="billing"} 52.0`},
		"concurrency":         {`{handler="billing"} 32.0`},
		"holding":             {`{handler="billing"} 2.0`, `{handler="mail"} 0.0`},
		"order_waiting":       {`{handler="mail",queue="mails"} 7.0`},
		"order_blocked":       {`{handler="mail",queue="mails"} 3.0`},
		"key_limit":           {`{handler="billing",key="7",reason="slow"} 7.0`, `{handler="billing",key="8",reason="failing"} 0.0`},
		"key_parked":          {`{handler="billing",key="7"} 30.0`, `{handler="billing",key="8"} 0.0`, `{handler="billing",key="9"} 1.0`},
		"consuming": {
			`{handler="billing",topic="orders"} 1.0`, `{handler="billing",topic="returns"} 0.0`,
			`{handler="mail",topic="letters"} 0.0`, `{handler="mail",topic="orders"} 1.0`,
		},
		"paused": {
			`{handler="billing",reason="failing"} 1.0`, `{handler="billing",reason="holding"} 0.0`, `{handler="billing",reason="paused"} 1.0`,
			`{handler="mail",reason="failing"} 0.0`, `{handler="mail",reason="holding"} 0.0`, `{handler="mail",reason="paused"} 0.0`,
		},
	} {
		assert.Equal(t, want, samples(t, registry, "watermill_retry_"+name), name)
	}
}

// TestCountersOutliveASubscription: they never fall, also where several subscriptions have the same handler and topic.
func TestCountersOutliveASubscription(t *testing.T) {
	t.Parallel()
	a := newApp(t)
	registry := register(t, observe.Config{}, a)
	for _, step := range []struct {
		deliveries []uint64 // of the subscriptions
		want       int
	}{
		{[]uint64{10}, 10},
		{[]uint64{15}, 15},
		{[]uint64{3}, 18},        // another one
		{[]uint64{}, 18},         // it has ended
		{[]uint64{0}, 18},        // another one
		{[]uint64{2, 50}, 70},    // and one more
		{[]uint64{50, 2}, 70},    // in another order
		{[]uint64{60}, 80},       // the first has ended
		{[]uint64{60, 0}, 80},    // another one
		{[]uint64{1, 70, 5}, 96}, // one has ended, or not
	} {
		var all []retry.SubscriptionHealth
		for _, n := range step.deliveries {
			all = append(all, retry.SubscriptionHealth{Name: handler, Topic: topic, Deliveries: n, Redeliveries: n / 2, Reconnects: n})
		}
		a.subscriptions(all...)
		want := []string{fmt.Sprintf(`{handler="billing",topic="orders"} %d.0`, step.want)}
		assert.Equal(t, want, samples(t, registry, "watermill_retry_deliveries_total"), "%v", step.deliveries)
		assert.Equal(t, want, samples(t, registry, "watermill_retry_consumer_restarts_total"), "%v", step.deliveries)
		assert.Len(t, samples(t, registry, "watermill_retry_redeliveries_total"), 1)
	}
}

func TestSeveralConnectionsShareAnObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var apps []*app
		for i := range 2 {
			a := newApp(t)
			a.health = func() retry.Health {
				return retry.Health{
					Links: []retry.LinkHealth{{Name: "consuming", Connected: true, Reconnects: 1}, {Name: "publishing", Connected: i == 0, Reconnects: i}},
					Subscriptions: []retry.SubscriptionHealth{
						{Name: handler, Topic: topic, InFlight: 1 + i, Concurrency: 16, Deliveries: 10, Consuming: true},
						{Name: fmt.Sprint("own ", i), Topic: topic, InFlight: 1},
					},
				}
			}
			a.waiting = func(context.Context) ([]backend.Waiting, error) {
				return []backend.Waiting{{Kind: backend.WaitingTier, Queue: "retry.1s", Tier: backoff.Tier(time.Second), Messages: 5 + i}}, nil
			}
			apps = append(apps, a)
		}
		registry := register(t, observe.Config{}, apps...)
		for _, a := range apps {
			a.deliver(newMessage(from(topic, handler)), nil)
		}
		scrape(t, registry)
		synctest.Wait()
		check := func(want map[string][]string) {
			t.Helper()
			for name, of := range want {
				assert.Equal(t, of, samples(t, registry, "watermill_retry_"+name), name)
			}
		}
		counters := map[string][]string{
			"outcomes_total":   {`{handler="billing",outcome="processed",reason="",topic="orders"} 2.0`},
			"deliveries_total": {`{handler="billing",topic="orders"} 20.0`, `{handler="own 0",topic="orders"} 0.0`, `{handler="own 1",topic="orders"} 0.0`},
			"reconnects_total": {`{connection="consuming"} 2.0`, `{connection="publishing"} 1.0`},
		}
		check(counters)
		check(map[string][]string{
			"in_flight":   {`{handler="billing"} 3.0`, `{handler="own 0"} 1.0`, `{handler="own 1"} 1.0`},
			"concurrency": {`{handler="billing"} 32.0`},
			"connected":   {`{connection="consuming"} 1.0`, `{connection="publishing"} 0.0`},
			"waiting":     {`{kind="tier",queue="retry.1s",tier="1s"} 6.0`}, // both may ask the same broker
		})

		apps[1].end()
		synctest.Wait()
		check(counters)
		check(map[string][]string{
			"in_flight":   {`{handler="billing"} 1.0`, `{handler="own 0"} 1.0`},
			"concurrency": {`{handler="billing"} 16.0`},
			"connected":   {`{connection="consuming"} 1.0`, `{connection="publishing"} 1.0`},
			"waiting":     {`{kind="tier",queue="retry.1s",tier="1s"} 5.0`},
		})

		apps[0].end()
		synctest.Wait()
		check(counters)
		for _, m := range observe.Metrics() {
			if m.Kind == "gauge" {
				assert.Empty(t, samples(t, registry, m.Prometheus), m.Name)
			}
		}
	})
}

// TestLabelsOfSeveralConnectionsAreBounded: "other" takes no place of those that have one.
func TestLabelsOfSeveralConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	apps := []*app{newApp(t), newApp(t)}
	for i, a := range apps {
		var all []retry.SubscriptionHealth
		for n := range 10 {
			all = append(all, retry.SubscriptionHealth{Name: fmt.Sprintf("handler %d.%d", i, n), Topic: topic, InFlight: 1})
		}
		a.subscriptions(all...)
	}
	registry := register(t, observe.Config{MaxSeries: 3}, apps...)
	for range 5 {
		assert.Equal(t, []string{`{handler="handler 0.0"} 1.0`, `{handler="handler 0.1"} 1.0`, `{handler="handler 0.2"} 1.0`, `{handler="other"} 17.0`},
			samples(t, registry, "watermill_retry_in_flight"))
	}
	apps[0].subscriptions(retry.SubscriptionHealth{Name: "handler 0.0", Topic: topic, InFlight: 1})
	assert.Equal(t, []string{`{handler="handler 0.0"} 1.0`, `{handler="handler 1.0"} 1.0`, `{handler="handler 1.1"} 1.0`, `{handler="other"} 8.0`},
		samples(t, registry, "watermill_retry_in_flight"))
}

// TestWhatRelaysKeepIsAdded: each keeps messages of its own.
func TestWhatRelaysKeepIsAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		apps := []*app{newApp(t), newApp(t)}
		for i, a := range apps {
			a.system = "nats"
			a.waiting = func(context.Context) ([]backend.Waiting, error) {
				return []backend.Waiting{{Kind: backend.WaitingTier, Queue: "retry.tier.1s", Tier: backoff.Tier(time.Second), Messages: 5 + i}}, nil
			}
		}
		registry := register(t, observe.Config{}, apps...)
		scrape(t, registry)
		synctest.Wait()
		assert.Equal(t, []string{`{kind="tier",queue="retry.tier.1s",tier="1s"} 11.0`}, samples(t, registry, "watermill_retry_waiting"))
	})
}

// TestTheLastDeliveriesOfAConnectionCount: those between the last scrape and its end.
func TestTheLastDeliveriesOfAConnectionCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t)
		registry := register(t, observe.Config{}, a)
		a.subscriptions(retry.SubscriptionHealth{Name: handler, Topic: topic, Deliveries: 10})
		scrape(t, registry)
		a.subscriptions(retry.SubscriptionHealth{Name: handler, Topic: topic, Deliveries: 12})
		a.end()
		synctest.Wait()
		a.subscriptions()
		assert.Equal(t, []string{`{handler="billing",topic="orders"} 12.0`}, samples(t, registry, "watermill_retry_deliveries_total"))
	})
}

// TestARegistryTakesOneObserver: the second is refused, the first goes on, and so does each scrape.
func TestARegistryTakesOneObserver(t *testing.T) {
	t.Parallel()
	for name, registry := range map[string]*prometheus.Registry{"default": prometheus.NewRegistry(), "pedantic": prometheus.NewPedanticRegistry()} {
		first, second := newApp(t), newApp(t)
		first.observe(observe.Prometheus(registry))
		second.observe(observe.Prometheus(registry))
		require.Empty(t, first.logged.errors(), name)
		require.Len(t, second.logged.errors(), 1, name)
		assert.Contains(t, second.logged.errors()[0], "attach that one to all Connections", name)
		for range 2 {
			for _, a := range []*app{first, second} {
				a.deliver(newMessage(from(topic, handler)), nil)
			}
			scrape(t, registry)
		}
		assert.Equal(t, []string{`{handler="billing",outcome="processed",reason="",topic="orders"} 2.0`},
			samples(t, registry, "watermill_retry_outcomes_total"), name)
		assert.Len(t, second.logged.errors(), 1, name)
	}
}

// brokenRegistry refuses, or panics at, the collector of this number.
type brokenRegistry struct {
	*prometheus.Registry
	number int
	panics bool
}

func (r *brokenRegistry) Register(c prometheus.Collector) error {
	if r.number--; r.number != 0 {
		return r.Registry.Register(c)
	}
	if r.panics {
		panic("of the registry")
	}
	return errors.New("the registry is full")
}

func TestWhatCannotBeObservedIsLoggedOnce(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		observer retry.Observer
		want     string
	}{
		"nil registerer":  {observe.Prometheus(nil), "the registerer is nil: give a registry"},
		"no registry":     {observe.Prometheus((*prometheus.Registry)(nil)), "nil pointer"},
		"full":            {observe.Prometheus(&brokenRegistry{prometheus.NewRegistry(), 1, false}), "the registry is full"},
		"nearly full":     {observe.Prometheus(&brokenRegistry{prometheus.NewRegistry(), 2, false}), "the registry is full"},
		"panics":          {observe.Prometheus(&brokenRegistry{prometheus.NewRegistry(), 1, true}), "of the registry"},
		"panics later":    {observe.Prometheus(&brokenRegistry{prometheus.NewRegistry(), 2, true}), "of the registry"},
		"nothing":         {observe.OpenTelemetry(nil, nil), "the meter provider and the tracer provider are nil"},
		"invalid":         {observe.Prometheus(prometheus.NewRegistry(), observe.Config{MaxSeries: -1, WaitingTimeout: -1}), "MaxSeries is -1"},
		"several configs": {observe.Prometheus(prometheus.NewRegistry(), observe.Config{}, observe.Config{}), "2 Configs were given"},
		"broken meter":    {observe.OpenTelemetry(brokenMeters{}, nil), "of the meter provider"},
	} {
		a := newApp(t).observe(row.observer)
		for range 2 {
			a.deliver(newMessage(from(topic, handler)), errDown, nil)
		}
		require.Len(t, a.logged.errors(), 1, name)
		assert.Contains(t, a.logged.errors()[0], row.want, name)
	}
	registry := prometheus.NewPedanticRegistry() // a refused observer leaves nothing in it
	newApp(t).observe(observe.Prometheus(&brokenRegistry{registry, 2, false}))
	a := newApp(t).observe(observe.Prometheus(registry))
	require.Empty(t, a.logged.errors())
	a.deliver(newMessage(from(topic, handler)), nil)
	assert.Len(t, samples(t, registry, "watermill_retry_outcomes_total"), 1)
}

type brokenMeters struct{ noop.MeterProvider }

func (brokenMeters) Meter(string, ...otelmetric.MeterOption) otelmetric.Meter {
	panic("of the meter provider")
}

// TestAHealthThatPanicsIsLoggedOnce: the other metrics stay, and so do its counters.
func TestAHealthThatPanicsIsLoggedOnce(t *testing.T) {
	t.Parallel()
	a, b := newApp(t), newApp(t)
	a.subscriptions(retry.SubscriptionHealth{Name: handler, Topic: topic, Deliveries: 10})
	b.subscriptions(retry.SubscriptionHealth{Name: "mail", Topic: topic})
	registry := register(t, observe.Config{}, a, b)
	scrape(t, registry)
	a.health = func() retry.Health { panic("of Health") }
	a.deliver(newMessage(from(topic, handler)), nil)
	for range 3 {
		assert.Equal(t, []string{`{handler="mail"} 0.0`}, samples(t, registry, "watermill_retry_in_flight"))
		assert.Contains(t, samples(t, registry, "watermill_retry_deliveries_total"), `{handler="billing",topic="orders"} 10.0`)
		assert.Len(t, samples(t, registry, "watermill_retry_outcomes_total"), 1)
	}
	require.Len(t, a.logged.errors(), 1)
	assert.Contains(t, a.logged.errors()[0], "of Health")
	assert.Empty(t, b.logged.errors())
}

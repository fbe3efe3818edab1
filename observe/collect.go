package observe

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"go.opentelemetry.io/otel/metric"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/retry"
)

// metrics are the metrics of all Connections of an observer.
type metrics struct {
	events
	config   Config
	readings []Metric

	mu       sync.Mutex
	attached []*connection
	ended    figures // the counters of Connections that are closed
	logger   watermill.LoggerAdapter
	failed   bool
}

func newMetrics(meter metric.Meter, config Config) (*metrics, error) {
	made, err := newInstruments(meter)
	if err != nil {
		return nil, fmt.Errorf("the meter does not make the instruments: %w", err)
	}
	m := &metrics{
		events: events{instruments: made, series: newSeries[options](config.MaxSeries)}, config: config,
		readings: readings(), ended: newFigures(config.MaxSeries),
	}
	if _, err := meter.RegisterCallback(m.collect, slices.Collect(maps.Values(made.observables))...); err != nil {
		return nil, fmt.Errorf("the meter does not take the callback: %w", err)
	}
	return m, nil
}

// attach returns the observer of a Connection. traces is that of its spans.
func (m *metrics) attach(observed backend.Observed, traces backend.Observer) backend.Observer {
	observed.Logger = cmp.Or[watermill.LoggerAdapter](observed.Logger, watermill.NopLogger{})
	c := &connection{Observed: observed, totals: newTotals(m.config.MaxSeries)}
	c.looks = &looks{Observed: observed, config: m.config, at: time.Now()}
	c.looks.ctx, c.looks.stop = context.WithCancel(context.Background())
	if observed.System != "rabbitmq" {
		c.flights = newFlights(m.config.MaxSeries)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.attached, m.logger = append(m.attached, c), observed.Logger
	go func() { <-observed.Closed; m.detach(c) }()
	return &measured{Observer: traces, metrics: m, flights: c.flights}
}

// measured counts what a Connection reports. The Observer that makes the spans is around it: it begins first, and its
// Event comes last.
type measured struct {
	backend.Observer
	metrics *metrics
	flights *flights // nil: the backend counts what is in flight
}

// Begin implements backend.Observer.
func (m *measured) Begin(e retry.Event) context.Context {
	ctx := m.Observer.Begin(e)
	if m.flights == nil {
		return ctx
	}
	e.Context = cmp.Or(ctx, e.Context)
	return m.flights.begin(e)
}

// Event implements retry.Observer.
func (m *measured) Event(e retry.Event) {
	defer m.Observer.Event(e) // also after a panic: a span must end
	defer m.metrics.event(e)
	if m.flights != nil {
		m.flights.event(e)
	}
}

// Published implements backend.Observer.
func (m *measured) Published(p backend.Published) { m.metrics.published(p) }

// detach removes a Connection that is closed. Its counters stay.
func (m *metrics) detach(c *connection) {
	c.looks.stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	defer guard(m.logger, &m.failed, "The collection of the metrics panicked")
	m.attached = slices.DeleteFunc(m.attached, func(other *connection) bool { return other == c })
	c.gather(newFigures(m.config.MaxSeries), time.Now(), false) // the last counters
	c.totals.addTo(m.ended, m.readings)
}

// collect is the callback of a collection. It waits for nothing.
func (m *metrics) collect(_ context.Context, to metric.Observer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer guard(m.logger, &m.failed, "The collection of the metrics panicked")
	now, all := time.Now(), newFigures(m.config.MaxSeries)
	for _, r := range m.readings {
		for of, value := range m.ended.each(r) {
			all.add(r, sum, value, of)
		}
	}
	for _, c := range m.attached {
		own := newFigures(m.config.MaxSeries)
		c.gather(own, now, true)
		for _, r := range m.readings {
			across := r.across
			if r.Name == waiting.Name && c.flights != nil {
				across = sum // each relay keeps messages of its own
			}
			for of, value := range own.each(r) {
				all.add(r, across, value, of)
			}
		}
		c.totals.addTo(all, m.readings)
	}
	for _, r := range m.readings {
		for of, value := range all.each(r) {
			m.observe(to, r, value, of)
		}
	}
	return nil
}

// guard logs a panic, where none was logged before. It is deferred.
func guard(logger watermill.LoggerAdapter, failed *bool, text string) {
	if recovered := recover(); recovered != nil && !*failed {
		*failed = true
		logger.Error(text+". This is logged once", fmt.Errorf("panic: %v", recovered), nil)
	}
}

// pauseReasons are those of SubscriptionHealth.Paused.
var pauseReasons = []string{"paused", "failing", "holding"}

// connection is a Connection that is measured.
type connection struct {
	backend.Observed
	totals  totals
	looks   *looks
	flights *flights // nil: Health counts deliveries and messages in flight
	failed  bool     // Health has panicked
}

// gather adds the values of now. A panic of Health is logged, once.
func (c *connection) gather(to figures, now time.Time, look bool) {
	defer guard(c.Logger, &c.failed, "Health panicked: the metrics lack what it returns")
	if look {
		c.looks.gather(to, now)
	}
	if c.flights != nil {
		c.flights.gather(to)
	}
	health := c.Health()
	for _, link := range health.Links {
		to.add(connected, smallest, one(link.Connected), labels{link.Name})
		to.add(blocked, largest, one(link.Blocked), labels{link.Name})
		c.totals.see(reconnects, float64(link.Reconnects), labels{link.Name})
	}
	for i := range health.Subscriptions {
		c.subscription(to, &health.Subscriptions[i])
	}
	c.totals.done()
	for _, tier := range health.Tiers {
		to.add(overdue, sum, float64(tier.Overdue), labels{tier.Queue})
	}
}

// subscription adds the values of one. Those of a handler have the same holding, pauses and keys.
func (c *connection) subscription(to figures, s *retry.SubscriptionHealth) {
	handler, both := labels{s.Name}, labels{s.Topic, s.Name}
	to.add(holding, largest, float64(s.Holding), handler)
	for _, reason := range pauseReasons {
		to.add(paused, largest, one(s.PausedLimit == 0 && slices.Contains(s.Paused, reason)), labels{s.Name, reason})
	}
	for _, name := range slices.Sorted(maps.Keys(s.Keys)) {
		key := s.Keys[name]
		if key.Paused != "" {
			to.add(keyLimit, smallest, float64(key.Limit), labels{s.Name, name, key.Paused})
		}
		to.add(keyParked, largest, float64(key.Parked), labels{s.Name, name})
	}
	to.add(consuming, smallest, one(s.Consuming), both)
	if s.Concurrency > 0 {
		to.add(concurrency, sum, float64(s.Concurrency), handler)
	}
	if c.flights != nil {
		return
	}
	to.add(calls, sum, float64(s.Calls), handler)
	if s.Prefetch > 0 {
		to.add(prefetch, sum, float64(s.Prefetch), handler)
	}
	to.add(inFlight, sum, float64(s.InFlight), handler)
	if s.Blocked != nil {
		to.add(orderWaiting, largest, float64(s.OrderWaiting), labels{s.Name, s.Queue})
		to.add(orderBlocked, sum, float64(len(s.Blocked)), labels{s.Name, s.Queue})
	}
	c.totals.see(deliveries, float64(s.Deliveries), both)
	c.totals.see(redeliveries, float64(s.Redeliveries), both)
	c.totals.see(consumerRestarts, float64(s.Reconnects), both)
}

func one(yes bool) float64 { return either[float64](yes, 1, 0) }

// pauseFactor is how many times as long as a look the pause after it is at least.
const pauseFactor = 20

// looks asks a Connection what waits, in the background, and keeps the last answer.
type looks struct {
	backend.Observed
	config Config
	ctx    context.Context
	stop   context.CancelFunc

	mu      sync.Mutex
	running bool
	next    time.Time // when the next look may begin; zero: now
	figures []backend.Waiting
	at      time.Time // the time of figures; until there are any, when the Connection was attached
	failed  bool      // since the last answer
}

// gather adds the last answer, and begins a look where it is too old.
func (l *looks) gather(to figures, now time.Time) {
	if l.Waiting == nil || l.config.WaitingEvery < 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.figures {
		tier := either(w.Tier != 0, w.Tier.String(), "")
		to.add(waiting, sum, float64(w.Messages), labels{string(w.Kind), w.Queue, tier})
		if !w.NextDue.IsZero() {
			to.add(waitingDue, smallest, age(now, w.NextDue), labels{w.Queue, tier})
		}
	}
	to.add(waitingAge, largest, age(l.at, now), labels{})
	if !l.running && !now.Before(l.next) && l.ctx.Err() == nil {
		l.running = true
		go l.look()
	}
}

// look asks once. A Waiter that does not return at its deadline is logged then, and no further look begins before it
// returns.
func (l *looks) look() {
	began := time.Now()
	ctx, cancel := context.WithTimeout(l.ctx, l.config.WaitingTimeout)
	defer cancel()
	late := time.AfterFunc(l.config.WaitingTimeout+time.Second, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.fail(fmt.Errorf("it has not returned at its deadline, %v", l.config.WaitingTimeout))
	})
	var figures []backend.Waiting
	err := panics.Error("the Waiter", func() (err error) { figures, err = l.Waiting(ctx); return err })
	late.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.running, l.next = false, now.Add(max(l.config.WaitingEvery, pauseFactor*now.Sub(began)))
	if err != nil {
		l.fail(err)
		return
	}
	l.figures, l.at, l.failed = figures, now, false
}

// fail logs the first failure since the last answer. That of a Connection that is closed is none.
func (l *looks) fail(err error) {
	if !l.failed && l.ctx.Err() == nil {
		l.failed = true
		l.Logger.Error("Cannot find out what waits: the metrics have the last figures. This is logged once until "+
			"it works again", err, nil)
	}
}

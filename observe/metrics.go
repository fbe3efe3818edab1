package observe

import (
	_ "embed"
	"slices"
	"strings"
)

// Metric describes one metric. Metrics lists them all.
type Metric struct {
	Name        string    // in OpenTelemetry
	Prometheus  string    // in Prometheus
	Kind        string    // counter, gauge or histogram
	Unit        string    // the unit in UCUM: "s", or what is counted in braces
	Labels      []string  // the labels of each series; all are bounded: see Config.MaxSeries
	Buckets     []float64 // the buckets of a histogram, in Unit
	Description string

	across merge // values of several Connections, of a metric that is read at a collection
}

// The kinds: a counter only grows until the process ends, a gauge is a value of now, and a histogram counts values by
// their size.
const (
	counter   = "counter"
	gauge     = "gauge"
	histogram = "histogram"
)

// The labels.
const (
	labelTopic      = "topic"
	labelHandler    = "handler"
	labelOutcome    = "outcome"
	labelReason     = "reason"
	labelTier       = "tier"
	labelQueue      = "queue"
	labelKind       = "kind"
	labelResult     = "result"
	labelConnection = "connection"
	labelKey        = "key"
)

var (
	seconds      = []float64{0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}
	longSeconds  = []float64{1, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600, 30 * 24 * 3600}
	failureSteps = []float64{0, 1, 2, 3, 4, 5, 8, 13, 21}
)

var (
	byHandler    = []string{labelHandler}
	byBoth       = []string{labelTopic, labelHandler}
	byQueue      = []string{labelHandler, labelQueue}
	byConnection = []string{labelConnection}
	byOutcome    = []string{labelTopic, labelHandler, labelOutcome, labelReason}
	byLimit      = []string{labelHandler, labelKey, labelReason}
	byPlace      = []string{labelKind, labelQueue, labelTier}
)

// The metrics.
var (
	outcomes              = metricOf(counter, "outcomes", "{delivery}", byOutcome)
	handlerDuration       = metricOf(histogram, "handler.duration", "s", byBoth).within(seconds)
	failuresBeforeSuccess = metricOf(histogram, "failures_before_success", "{failure}", byBoth).within(failureSteps)
	ageAtSuccess          = metricOf(histogram, "age_at_success", "s", byBoth).within(longSeconds)
	ageAtDeath            = metricOf(histogram, "age_at_death", "s", byBoth).within(longSeconds)
	calls                 = metricOf(gauge, "calls", "{call}", byHandler).read(sum)
	inFlight              = metricOf(gauge, "in_flight", "{message}", byHandler).read(sum)
	holding               = metricOf(gauge, "holding", "{message}", byHandler).read(sum)
	paused                = metricOf(gauge, "paused", "{handler}", []string{labelHandler, labelReason}).read(largest)
	concurrency           = metricOf(gauge, "concurrency", "{call}", byHandler).read(sum)
	prefetch              = metricOf(gauge, "prefetch", "{message}", byHandler).read(sum)
	consuming             = metricOf(gauge, "consuming", "{handler}", byBoth).read(smallest)
	orderWaiting          = metricOf(gauge, "order.waiting", "{message}", byQueue).read(largest)
	orderBlocked          = metricOf(gauge, "order.blocked", "{message}", byQueue).read(sum)
	keyLimit              = metricOf(gauge, "key.limit", "{call}", byLimit).read(smallest)
	keyParked             = metricOf(gauge, "key.parked", "{message}", []string{labelHandler, labelKey}).read(sum)
	lateness              = metricOf(histogram, "lateness", "s", []string{labelTopic, labelTier}).within(seconds)
	publishes             = metricOf(counter, "publishes", "{message}", []string{labelKind, labelResult})
	publishDuration       = metricOf(histogram, "publish.duration", "s", []string{labelKind}).within(seconds)
	connected             = metricOf(gauge, "connected", "{connection}", byConnection).read(smallest)
	blocked               = metricOf(gauge, "blocked", "{connection}", byConnection).read(largest)
	reconnects            = metricOf(counter, "reconnects", "{reconnect}", byConnection).read(sum)
	deliveries            = metricOf(counter, "deliveries", "{delivery}", byBoth).read(sum)
	redeliveries          = metricOf(counter, "redeliveries", "{delivery}", byBoth).read(sum)
	consumerRestarts      = metricOf(counter, "consumer_restarts", "{restart}", byBoth).read(sum)
	waiting               = metricOf(gauge, "waiting", "{message}", byPlace).read(largest)
	waitingDue            = metricOf(gauge, "waiting.due", "s", []string{labelQueue, labelTier}).read(smallest)
	waitingAge            = metricOf(gauge, "waiting.age", "s", nil).read(largest)
	overdue               = metricOf(gauge, "overdue", "{message}", []string{labelQueue}).read(largest)
)

// Metrics returns all metrics, in the order of the list in docs/observability.md.
func Metrics() []Metric {
	return []Metric{
		outcomes, handlerDuration, failuresBeforeSuccess, ageAtSuccess, ageAtDeath,
		calls, inFlight, holding, paused, concurrency, prefetch, consuming, orderWaiting, orderBlocked,
		keyLimit, keyParked, lateness,
		publishes, publishDuration, connected, blocked, reconnects, deliveries, redeliveries, consumerRestarts,
		waiting, waitingDue, waitingAge, overdue,
	}
}

// metricsText has the description of each metric, by its name.
//
//go:embed metrics.txt
var metricsText string

// metricOf returns a metric. Its name in Prometheus is the one that the exporter of OpenTelemetry gives it.
func metricOf(kind, name, unit string, labels []string) Metric {
	_, description, found := strings.Cut(metricsText, "\n# "+name+"\n")
	if !found {
		panic("metrics.txt has no metric " + name)
	}
	description, _, _ = strings.Cut(description, "\n# ")
	name = "watermill.retry." + name
	return Metric{
		Name: name, Kind: kind, Unit: unit, Labels: labels,
		Description: strings.Join(strings.Fields(description), " "),
		Prometheus: strings.ReplaceAll(name, ".", "_") + either(unit == "s", "_seconds", "") +
			either(kind == counter, "_total", ""),
	}
}

func (m Metric) within(buckets []float64) Metric {
	m.Buckets = buckets
	return m
}

// read makes it a metric that is read at a collection.
func (m Metric) read(across merge) Metric {
	m.across = across
	return m
}

// readings returns the metrics that are read at a collection. Several Connections may ask the same broker what waits.
func readings() []Metric {
	return slices.DeleteFunc(Metrics(), func(m Metric) bool { return m.across == nil })
}

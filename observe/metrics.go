package observe

import (
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
)

// The metrics.
var (
	outcomes = metricOf(counter, "outcomes", "{delivery}",
		[]string{labelTopic, labelHandler, labelOutcome, labelReason},
		"Deliveries by their outcome. The reason is the dead reason of a message that is given up, else the name of the "+
			"rule that has decided, else it is empty.")
	handlerDuration = metricOf(histogram, "handler.duration", "s", byBoth,
		"How long each call of a handler took.").within(seconds)
	failuresBeforeSuccess = metricOf(histogram, "failures_before_success", "{failure}", byBoth,
		"How often a message had failed when its handler succeeded.").within(failureSteps)
	ageAtSuccess = metricOf(histogram, "age_at_success", "s", byBoth, "How long ago a message had failed first when "+
		"its handler succeeded. Messages that have not failed do not count.").within(longSeconds)
	ageAtDeath = metricOf(histogram, "age_at_death", "s", byBoth,
		"How long ago a message had failed first when it became a dead letter.").within(longSeconds)
	calls = metricOf(gauge, "calls", "{call}", byHandler,
		"How many places of the concurrency are taken: by calls, and by messages that keep theirs after the call.").read(sum)
	inFlight = metricOf(gauge, "in_flight", "{message}", byHandler, "Messages that handlers have now: calls, those "+
		"that wait for confirms, and those that are held.").read(sum)
	holding = metricOf(gauge, "holding", "{message}", byHandler,
		"Messages that are held, because their copies cannot be published.").read(sum)
	paused = metricOf(gauge, "paused", "{handler}", []string{labelHandler, labelReason}, "1 while the handler takes "+
		"no new messages for this reason (paused, failing or holding), else 0.").read(largest)
	concurrency = metricOf(gauge, "concurrency", "{call}", byHandler,
		"How many calls of the handler run at most, all its subscriptions together.").read(sum)
	prefetch = metricOf(gauge, "prefetch", "{message}", byHandler,
		"How many messages the handler has in flight at most, all its subscriptions together.").read(sum)
	consuming = metricOf(gauge, "consuming", "{handler}", byBoth,
		"1 while messages of the topic are delivered to the handler, else 0.").read(smallest)
	orderWaiting = metricOf(gauge, "order.waiting", "{message}", byQueue, "Messages that wait for their retry or are "+
		"blocked, and those behind them: in the partition with most.").read(largest)
	orderBlocked = metricOf(gauge, "order.blocked", "{message}", byQueue, "Messages that wait for an operator: the "+
		"handler has Order.Block.").read(sum)
	keyLimit = metricOf(gauge, "key.limit", "{call}", []string{labelHandler, labelKey, labelReason}, "How many calls of "+
		"a limited key run at most: 0 while it pauses. The reason is failing, slow, retry after, paused or limited. A key "+
		"that is not limited has none.").read(smallest)
	keyParked = metricOf(gauge, "key.parked", "{message}", []string{labelHandler, labelKey}, "How often messages of a "+
		"key had to wait, since the process has seen it first. Only the 20 keys of Health have it.").read(sum)
	lateness = metricOf(histogram, "lateness", "s", []string{labelTopic, labelTier}, "How long after its due time a "+
		"retry began, by the clocks of two hosts. It includes the time in the work queue. A due time that lies more "+
		"than MaxDelay back does not count: it is forged.").within(seconds)
	publishes = metricOf(counter, "publishes", "{message}", []string{labelKind, labelResult}, "Messages that were "+
		"published, by kind (copy: of a message that failed; app: of the app) and result.")
	publishDuration = metricOf(histogram, "publish.duration", "s", []string{labelKind},
		"How long a call of the publisher took, until the last confirm.").within(seconds)
	connected = metricOf(gauge, "connected", "{connection}", byConnection,
		"1 while the connection (consuming, publishing or moving) is open, else 0.").read(smallest)
	blocked = metricOf(gauge, "blocked", "{connection}", byConnection,
		"1 while the broker blocks the connection because of an alarm, else 0.").read(largest)
	reconnects = metricOf(counter, "reconnects", "{reconnect}", byConnection,
		"How often the connection was opened again.").read(sum)
	deliveries = metricOf(counter, "deliveries", "{delivery}", byBoth,
		"Messages that the subscriber has received.").read(sum)
	redeliveries = metricOf(counter, "redeliveries", "{delivery}", byBoth,
		"Deliveries of messages that the broker had delivered before.").read(sum)
	consumerRestarts = metricOf(counter, "consumer_restarts", "{restart}", byBoth,
		"How often the subscriber began to consume again.").read(sum)
	waiting = metricOf(gauge, "waiting", "{message}", []string{labelKind, labelQueue, labelTier},
		"Messages that wait in a queue, by kind (tier, inbox, work, dead, orphans).").read(largest)
	waitingDue = metricOf(gauge, "waiting.due", "s", []string{labelQueue, labelTier}, "The longest time until the "+
		"first message of a tier is due. RabbitMQ does not show how long it has waited: it is the delay of the "+
		"tier.").read(smallest)
	waitingAge = metricOf(gauge, "waiting.age", "s", nil, "How old the figures of watermill_retry_waiting are. It "+
		"also grows while the broker has not answered yet.").read(largest)
	overdue = metricOf(gauge, "overdue", "{message}", []string{labelQueue},
		"Messages of a tier or inbox whose delay is over and which the broker cannot forward.").read(largest)
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

// metricOf returns a metric. Its name in Prometheus is the one that the exporter of OpenTelemetry gives it.
func metricOf(kind, name, unit string, labels []string, description string) Metric {
	name = "watermill.retry." + name
	return Metric{
		Name: name, Kind: kind, Unit: unit, Labels: labels, Description: description,
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

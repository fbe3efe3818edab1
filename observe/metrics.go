package observe

// Metric describes one metric. Metrics lists them all.
type Metric struct {
	Name        string // in OpenTelemetry
	Prometheus  string // in Prometheus
	Kind        Kind
	Unit        string    // of UCUM: "s", or what is counted in braces
	Labels      []string  // of each series; all are bounded: see Config.MaxSeries
	Buckets     []float64 // of a histogram, in Unit
	Description string
}

// Kind is how the values of a metric are to be read.
type Kind string

// The kinds of metrics.
const (
	Counter   Kind = "counter"   // only grows, until the process ends
	Gauge     Kind = "gauge"     // is one of now
	Histogram Kind = "histogram" // counts values by their size
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
)

var (
	seconds      = []float64{0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}
	longSeconds  = []float64{1, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600, 30 * 24 * 3600}
	failureSteps = []float64{0, 1, 2, 3, 4, 5, 8, 13, 21}
)

// The metrics.
var (
	outcomes = Metric{
		Name: "watermill.retry.outcomes", Prometheus: "watermill_retry_outcomes_total", Kind: Counter,
		Unit:   "{delivery}",
		Labels: []string{labelTopic, labelHandler, labelOutcome, labelReason},
		Description: "Deliveries by their outcome. The reason is the dead reason of a dead letter, else the name of " +
			"the rule that has decided, else it is empty.",
	}
	handlerDuration = Metric{
		Name: "watermill.retry.handler.duration", Prometheus: "watermill_retry_handler_duration_seconds",
		Kind: Histogram, Unit: "s",
		Labels: []string{labelTopic, labelHandler}, Buckets: seconds, Description: "How long each call of a " +
			"handler took.",
	}
	failuresBeforeSuccess = Metric{
		Name: "watermill.retry.failures_before_success", Prometheus: "watermill_retry_failures_before_success",
		Kind: Histogram, Unit: "{failure}",
		Labels: []string{labelTopic, labelHandler}, Buckets: failureSteps, Description: "How often a message had " +
			"failed when its handler succeeded.",
	}
	ageAtSuccess = Metric{
		Name: "watermill.retry.age_at_success", Prometheus: "watermill_retry_age_at_success_seconds", Kind: Histogram,
		Unit:   "s",
		Labels: []string{labelTopic, labelHandler}, Buckets: longSeconds,
		Description: "How long ago a message had failed first when its handler succeeded. Messages that have not " +
			"failed do not count.",
	}
	ageAtDeath = Metric{
		Name: "watermill.retry.age_at_death", Prometheus: "watermill_retry_age_at_death_seconds", Kind: Histogram,
		Unit:   "s",
		Labels: []string{labelTopic, labelHandler}, Buckets: longSeconds,
		Description: "How long ago a message had failed first when it became a dead letter.",
	}
	inFlight = Metric{
		Name: "watermill.retry.in_flight", Prometheus: "watermill_retry_in_flight", Kind: Gauge, Unit: "{message}",
		Labels: []string{labelHandler}, Description: "Messages that handlers have now, held ones among them.",
	}
	holding = Metric{
		Name: "watermill.retry.holding", Prometheus: "watermill_retry_holding", Kind: Gauge, Unit: "{message}",
		Labels: []string{labelHandler}, Description: "Messages that are held, because their copies cannot be " +
			"published.",
	}
	paused = Metric{
		Name: "watermill.retry.paused", Prometheus: "watermill_retry_paused", Kind: Gauge, Unit: "{handler}",
		Labels:      []string{labelHandler, labelReason},
		Description: "1 while the handler takes no new messages for this reason (paused, failing or holding), else 0.",
	}
	concurrency = Metric{
		Name: "watermill.retry.concurrency", Prometheus: "watermill_retry_concurrency", Kind: Gauge,
		Unit:   "{message}",
		Labels: []string{labelHandler}, Description: "How many messages the handler has in flight at most, all " +
			"its subscriptions together.",
	}
	consuming = Metric{
		Name: "watermill.retry.consuming", Prometheus: "watermill_retry_consuming", Kind: Gauge, Unit: "{handler}",
		Labels: []string{labelTopic, labelHandler}, Description: "1 while messages of the topic are delivered to " +
			"the handler, else 0.",
	}
	lateness = Metric{
		Name: "watermill.retry.lateness", Prometheus: "watermill_retry_lateness_seconds", Kind: Histogram, Unit: "s",
		Labels: []string{labelTopic, labelTier}, Buckets: seconds,
		Description: "How long after its due time a retry began, by the clocks of two hosts. It includes the time in " +
			"the work queue. A due time that lies more than MaxDelay back does not count: it is forged.",
	}
	publishes = Metric{
		Name: "watermill.retry.publishes", Prometheus: "watermill_retry_publishes_total", Kind: Counter,
		Unit:   "{message}",
		Labels: []string{labelKind, labelResult},
		Description: "Messages that were published, by kind (copy: of a message that failed; app: of the app) and " +
			"result.",
	}
	publishDuration = Metric{
		Name: "watermill.retry.publish.duration", Prometheus: "watermill_retry_publish_duration_seconds",
		Kind: Histogram, Unit: "s",
		Labels: []string{labelKind}, Buckets: seconds, Description: "How long a call of the publisher took, until " +
			"the last confirm.",
	}
	connected = Metric{
		Name: "watermill.retry.connected", Prometheus: "watermill_retry_connected", Kind: Gauge, Unit: "{connection}",
		Labels: []string{labelConnection}, Description: "1 while the connection (consuming or publishing) is " +
			"open, else 0.",
	}
	blocked = Metric{
		Name: "watermill.retry.blocked", Prometheus: "watermill_retry_blocked", Kind: Gauge, Unit: "{connection}",
		Labels: []string{labelConnection}, Description: "1 while the broker blocks the connection because of an " +
			"alarm, else 0.",
	}
	reconnects = Metric{
		Name: "watermill.retry.reconnects", Prometheus: "watermill_retry_reconnects_total", Kind: Counter,
		Unit:   "{reconnect}",
		Labels: []string{labelConnection}, Description: "How often the connection was opened again.",
	}
	deliveries = Metric{
		Name: "watermill.retry.deliveries", Prometheus: "watermill_retry_deliveries_total", Kind: Counter,
		Unit:   "{delivery}",
		Labels: []string{labelTopic, labelHandler}, Description: "Messages that the subscriber has received.",
	}
	redeliveries = Metric{
		Name: "watermill.retry.redeliveries", Prometheus: "watermill_retry_redeliveries_total", Kind: Counter,
		Unit:   "{delivery}",
		Labels: []string{labelTopic, labelHandler}, Description: "Deliveries of messages that the broker had " +
			"delivered before.",
	}
	consumerRestarts = Metric{
		Name: "watermill.retry.consumer_restarts", Prometheus: "watermill_retry_consumer_restarts_total",
		Kind: Counter, Unit: "{restart}",
		Labels: []string{labelTopic, labelHandler}, Description: "How often the subscriber began to consume again.",
	}
	waiting = Metric{
		Name: "watermill.retry.waiting", Prometheus: "watermill_retry_waiting", Kind: Gauge, Unit: "{message}",
		Labels:      []string{labelKind, labelQueue, labelTier},
		Description: "Messages that wait in a queue, by kind (tier, inbox, work, dead, orphans).",
	}
	waitingDue = Metric{
		Name: "watermill.retry.waiting.due", Prometheus: "watermill_retry_waiting_due_seconds", Kind: Gauge,
		Unit:   "s",
		Labels: []string{labelQueue, labelTier}, Description: "The longest time until the first message of a tier " +
			"is due. RabbitMQ does not show how long it has waited: it is the delay of the tier.",
	}
	waitingAge = Metric{
		Name: "watermill.retry.waiting.age", Prometheus: "watermill_retry_waiting_age_seconds", Kind: Gauge,
		Unit: "s",
		Description: "How old the figures of watermill_retry_waiting are. It also grows while the broker has not " +
			"answered yet.",
	}
	overdue = Metric{
		Name: "watermill.retry.overdue", Prometheus: "watermill_retry_overdue", Kind: Gauge, Unit: "{message}",
		Labels: []string{labelQueue}, Description: "Messages of a tier or inbox whose delay is over and which the " +
			"broker cannot forward.",
	}
)

// Metrics returns all metrics, in the order of the table in docs/observability.md.
func Metrics() []Metric {
	return []Metric{
		outcomes, handlerDuration, failuresBeforeSuccess, ageAtSuccess, ageAtDeath,
		inFlight, holding, paused, concurrency, consuming, lateness,
		publishes, publishDuration, connected, blocked, reconnects, deliveries, redeliveries, consumerRestarts,
		waiting, waitingDue, waitingAge, overdue,
	}
}

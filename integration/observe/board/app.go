package board

// The parts of queries. $job is a variable of the board, and $__rate_interval one of Grafana.
const (
	ofJob     = `{job=~"$job"}`
	ofHandler = `{job=~"$job", topic=~"$topic", handler="$handler"}`
	per       = `[$__rate_interval]`
)

func quantile(share, by, histogram, of string) string {
	if by != "" {
		by += ", "
	}
	return `histogram_quantile(` + share + `, sum by (` + by + `le) (rate(` + histogram + `_bucket` + of + per + `)))`
}

// app is the board of the metrics of package observe. What waits in a queue is the same figure on all instances of an
// app that look at it, so it is the maximum of them, and never a sum.
func app() Board {
	return Board{
		File: "app.json", UID: "watermill-retry-app", Title: "watermill-retry: apps",
		Description: "What the handlers of your apps do with failed messages, from the metrics of package observe. " +
			"On RabbitMQ every " +
			"instance has the figures of all queues, so the panels of what waits show the maximum; on other " +
			"backends, change max to sum there.",
		Variables: []Variable{
			{Name: "job", Label: "Job", Query: `label_values(watermill_retry_in_flight, job)`, All: true},
			{Name: "topic", Label: "Topic", Query: `label_values(watermill_retry_outcomes_total{job=~"$job"}, topic)`,
				All: true},
			{Name: "handler", Label: "Handler",
				Query: `label_values(watermill_retry_outcomes_total{job=~"$job", topic=~"$topic"}, handler)`},
		},
		Rows: []Row{
			{Title: "Overview by queue and topic", Panels: overview()},
			{Title: "One handler: $handler", Panels: oneHandler()},
			{Title: "Dead letters", Panels: deadLetters()},
			{Title: "Outage view", Panels: outage()},
		},
	}
}

func overview() []Panel {
	return []Panel{
		{
			Title: "Failed deliveries now", Width: 4, Stat: true, Unit: "percentunit", Warning: 0.1, Critical: 0.5,
			Description: "The share of the deliveries of all handlers that failed: retried, snoozed, discarded or " +
				"dead-lettered.",
			Queries: []Query{{failing("", ofJob), "failed"}},
		},
		{
			Title: "Outcomes", Width: 10, Unit: "ops",
			Description: "How many deliveries a second end with each outcome.",
			Queries: []Query{{`sum by (outcome) (rate(watermill_retry_outcomes_total` + ofJob + per + `))`,
				"{{outcome}}"}},
		},
		{
			Title: "Retries by topic", Width: 10, Unit: "ops",
			Description: "How many copies a second are published to a tier because a handler failed.",
			Queries: []Query{{
				`sum by (topic) (rate(watermill_retry_outcomes_total{job=~"$job", outcome="retried"}` + per + `))`,
				"{{topic}}",
			}},
		},
		{
			Title: "Messages on tiers", Width: 8, Unit: "short",
			Description: "How many messages wait for their delay on each tier, or on the inbox of their work queue.",
			Queries: []Query{{`max by (queue) (watermill_retry_waiting{job=~"$job", kind=~"tier|inbox"})`,
				"{{queue}}"}},
		},
		{
			Title: "Messages on work queues", Width: 8, Unit: "short",
			Description: "How many messages wait in each work queue for a handler.",
			Queries:     []Query{{`max by (queue) (watermill_retry_waiting{job=~"$job", kind="work"})`, "{{queue}}"}},
		},
		{
			Title: "Next retry", Width: 8, Unit: "s",
			Description: "In how many seconds at the latest the first message of each tier is due.",
			Queries: []Query{{`min by (queue, tier) (watermill_retry_waiting_due_seconds` + ofJob + `)`,
				"{{queue}}"}},
		},
		{
			Title: "Failures before success", Width: 8, Unit: "short",
			Description: "How often a message had failed on average before its handler succeeded, and the same for " +
				"the worst 5%.",
			Queries: []Query{
				{`sum by (topic) (rate(watermill_retry_failures_before_success_sum` + ofJob + per +
					`)) / sum by (topic) (rate(watermill_retry_failures_before_success_count` + ofJob + per +
					`))`, "{{topic}} mean"},
				{quantile("0.95", "topic", "watermill_retry_failures_before_success", ofJob), "{{topic}} 95%"},
			},
		},
		{
			Title: "Deliveries", Width: 8, Unit: "ops",
			Description: "How many messages a second the subscribers receive, and how many of them the broker had " +
				"delivered before.",
			Queries: []Query{
				{`sum by (topic) (rate(watermill_retry_deliveries_total` + ofJob + per + `))`, "{{topic}}"},
				{`sum by (topic) (rate(watermill_retry_redeliveries_total` + ofJob + per + `))`, "{{topic}} again"},
			},
		},
		{
			Title: "Handlers that take no messages", Width: 8, Unit: "short", Warning: 1,
			Description: "On how many instances each handler is paused, by the reason, or does not consume without " +
				"a pause, and how many instances are down.",
			Queries: []Query{
				{`sum by (handler, reason) (watermill_retry_paused` + ofJob + `)`, "{{handler}} paused: {{reason}}"},
				{`sum by (handler) ((watermill_retry_consuming` + ofJob +
					` == bool 0) unless on (job, instance, handler) watermill_retry_paused` + ofJob +
					` == 1)`, "{{handler}} does not consume"},
				{`sum by (job) (up` + ofJob + ` == bool 0)`, "{{job}} down"},
			},
		},
	}
}

func oneHandler() []Panel {
	return []Panel{
		{
			Title: "Outcomes of the handler", Width: 8, Unit: "ops",
			Description: "How many deliveries a second of this handler end with each outcome, and the dead reason " +
				"or the rule that decided.",
			Queries: []Query{{`sum by (outcome, reason) (rate(watermill_retry_outcomes_total` + ofHandler + per +
				`))`, "{{outcome}} {{reason}}"}},
		},
		{
			Title: "Duration of the handler", Width: 8, Unit: "s",
			Description: "How long half, 95% and 99% of the calls of this handler take at most.",
			Queries: []Query{
				{quantile("0.5", "", "watermill_retry_handler_duration_seconds", ofHandler), "50%"},
				{quantile("0.95", "", "watermill_retry_handler_duration_seconds", ofHandler), "95%"},
				{quantile("0.99", "", "watermill_retry_handler_duration_seconds", ofHandler), "99%"},
			},
		},
		{
			Title: "In flight", Width: 8, Unit: "short",
			Description: "How many messages this handler has on all instances, how many of them are held, and how " +
				"many it may have.",
			Queries: []Query{
				{`sum(watermill_retry_in_flight{job=~"$job", handler="$handler"})`, "in flight"},
				{`sum(watermill_retry_holding{job=~"$job", handler="$handler"})`, "held"},
				{`sum(watermill_retry_concurrency{job=~"$job", handler="$handler"})`, "concurrency"},
			},
		},
		{
			Title: "Age at success and at death", Width: 8, Unit: "s",
			Description: "How long after their first failure 95% of the messages at most succeeded, or became dead " +
				"letters.",
			Queries: []Query{
				{quantile("0.95", "", "watermill_retry_age_at_success_seconds", ofHandler), "success"},
				{quantile("0.95", "", "watermill_retry_age_at_death_seconds", ofHandler), "death"},
			},
		},
		{
			Title: "Instances that consume", Width: 8, Unit: "short",
			Description: "How many instances get messages for this handler, and how many have paused it, by the " +
				"reason.",
			Queries: []Query{
				{`sum(watermill_retry_consuming` + ofHandler + `)`, "consuming"},
				{`sum by (reason) (watermill_retry_paused{job=~"$job", handler="$handler"})`, "paused: {{reason}}"},
			},
		},
		{
			Title: "Consumer restarts", Width: 8, Unit: "short",
			Description: "How often the subscribers of this handler began to consume again, after a lost " +
				"connection or a pause.",
			Queries: []Query{{`sum by (topic) (increase(watermill_retry_consumer_restarts_total` + ofHandler + per +
				`))`, "{{topic}}"}},
		},
	}
}

func deadLetters() []Panel {
	return []Panel{
		{
			Title: "Dead letters", Width: 12, Unit: "short", Warning: 1,
			Description: "How many dead letters each dead-letter queue has.",
			Queries:     []Query{{`max by (queue) (watermill_retry_waiting{job=~"$job", kind="dead"})`, "{{queue}}"}},
		},
		{
			Title: "Orphans", Width: 12, Unit: "short", Warning: 1,
			Description: "How many messages came back to a work queue that was gone, or whose binding was.",
			Queries: []Query{{`max by (queue) (watermill_retry_waiting{job=~"$job", kind="orphans"})`,
				"{{queue}}"}},
		},
		{
			Title: "Dead letters by reason", Width: 12, Unit: "ops",
			Description: "How many messages a second become dead letters, by their topic and their dead reason.",
			Queries: []Query{{
				`sum by (topic, reason) (rate(watermill_retry_outcomes_total` +
					`{job=~"$job", outcome="dead-lettered"}` + per + `))`,
				"{{topic}} {{reason}}",
			}},
		},
		{
			Title: "Age at death by topic", Width: 12, Unit: "s",
			Description: "How long after their first failure half of the dead letters at most were given up.",
			Queries: []Query{{quantile("0.5", "topic", "watermill_retry_age_at_death_seconds", ofJob),
				"{{topic}}"}},
		},
	}
}

func outage() []Panel {
	return []Panel{
		{
			Title: "Failing share by handler", Width: 8, Unit: "percentunit", Warning: 0.1, Critical: 0.5,
			Description: "The share of the deliveries of each handler that failed: retried, snoozed, discarded or " +
				"dead-lettered.",
			Queries: []Query{{failing("handler", ofJob), "{{handler}}"}},
		},
		{
			Title: "Age of the waiting figures", Width: 8, Unit: "s", Warning: 300, Critical: 900,
			Description: "How old the figures of what waits in the queues are; it grows while the broker does not " +
				"answer.",
			Queries: []Query{{`max by (job) (watermill_retry_waiting_age_seconds` + ofJob + `)`, "{{job}}"}},
		},
		{
			Title: "Holding", Width: 8, Unit: "short", Warning: 1,
			Description: "How many messages are held because their copies cannot be published.",
			Queries:     []Query{{`sum by (handler) (watermill_retry_holding` + ofJob + `)`, "{{handler}}"}},
		},
		{
			Title: "In flight, as a share of the concurrency", Width: 8, Unit: "percentunit",
			Description: "At 100% a handler has as many messages as it may have; while the work queue grows, it is " +
				"too slow or waits.",
			Queries: []Query{{`sum by (handler) (watermill_retry_in_flight` + ofJob +
				`) / (sum by (handler) (watermill_retry_concurrency` + ofJob + `) > 0)`, "{{handler}}"}},
		},
		{
			Title: "Lateness of retries", Width: 8, Unit: "s", Warning: 60,
			Description: "How long after their due time 95% of the retries at most began, the time in the work " +
				"queue included.",
			Queries: []Query{{quantile("0.95", "topic, tier", "watermill_retry_lateness_seconds", ofJob),
				"{{topic}} {{tier}}"}},
		},
		{
			Title: "Waiting by kind", Width: 8, Unit: "short",
			Description: "How many messages wait in all queues together, by the kind of the queue.",
			Queries: []Query{{`sum by (kind) (max by (kind, queue) (watermill_retry_waiting` + ofJob + `))`,
				"{{kind}}"}},
		},
		{
			Title: "Instances not connected", Width: 8, Unit: "short", Warning: 1,
			Description: "How many instances have no connection to the broker for consuming or publishing, or one " +
				"that the broker has blocked.",
			Queries: []Query{
				{`sum by (connection) (1 - watermill_retry_connected` + ofJob + `)`, "{{connection}}: not connected"},
				{`sum by (connection) (watermill_retry_blocked` + ofJob + `)`, "{{connection}}: blocked"},
			},
		},
		{
			Title: "Reconnects", Width: 8, Unit: "short",
			Description: "How often the connections of all instances were opened again.",
			Queries: []Query{{`sum by (connection) (increase(watermill_retry_reconnects_total` + ofJob + per +
				`))`, "{{connection}}"}},
		},
		{
			Title: "Overdue tiers", Width: 8, Unit: "short", Warning: 1,
			Description: "How many messages of each tier or inbox have waited longer than their delay because the " +
				"broker cannot forward them.",
			Queries: []Query{{`max by (queue) (watermill_retry_overdue` + ofJob + `)`, "{{queue}}"}},
		},
		{
			Title: "Published messages", Width: 12, Unit: "ops",
			Description: "How many messages a second are published, by kind (copies of failed messages, messages " +
				"of the app) and by result.",
			Queries: []Query{{`sum by (kind, result) (rate(watermill_retry_publishes_total` + ofJob + per + `))`,
				"{{kind}}: {{result}}"}},
		},
		{
			Title: "Time to publish", Width: 12, Unit: "s",
			Description: "How long 95% of the calls of the publishers take at most, until the last confirm.",
			Queries: []Query{{quantile("0.95", "kind", "watermill_retry_publish_duration_seconds", ofJob),
				"{{kind}}"}},
		},
	}
}

// failing is the share of deliveries that are failures. Messages that are held, given back or parked come again: they
// do not count.
func failing(by, of string) string {
	sum := "sum"
	if by != "" {
		sum = "sum by (" + by + ") "
	}
	with := func(outcomes string) string {
		return sum + `(rate(watermill_retry_outcomes_total` + of[:len(of)-1] + `, outcome=~"` + outcomes + `"}` +
			per + `))`
	}
	const failed = "retried|snoozed|discarded|dead-lettered"
	all := with("processed|recovered|" + failed)
	return `(` + with(failed) + ` or ` + all + ` * 0) / (` + all + ` > 0)` // nothing, not NaN, where no message comes
}

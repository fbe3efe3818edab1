package board

const (
	onNode = `{instance=~"$instance"}`
	tiers  = `.+\\.$prefix\\..+`
	dead   = `.+\\.dead`
	orphan = `$prefix\\.orphans`
)

// The figures of a queue at /metrics/detailed.
const (
	all       = "rabbitmq_detailed_queue_messages"
	ready     = "rabbitmq_detailed_queue_messages_ready"
	unacked   = "rabbitmq_detailed_queue_messages_unacked"
	consumers = "rabbitmq_detailed_queue_consumers"
)

// expired is the number of messages that at-least-once dead-lettering has not finished: only the number of all
// messages has them.
func expired(match string) string {
	return queues(all, match) + " - " + queues(ready, match) + " - " + queues(unacked, match)
}

func queues(metric, match string) string {
	return `sum by (queue) (` + metric + `{instance=~"$instance", vhost=~"$vhost", queue` + match + `})`
}

func rate(metric string) string { return `sum(rate(` + metric + onNode + per + `))` }

// rabbitMQ is the board of RabbitMQ's own exporter, the plugin rabbitmq_prometheus. Figures of one queue are only at
// /metrics/detailed. In a cluster each node has the figures of the queues whose leader it has, so they are summed.
func rabbitMQ() Board {
	return Board{
		File: "rabbitmq.json", UID: "watermill-retry-rabbitmq", Title: "watermill-retry: RabbitMQ",
		Description: "The queues of watermill-retry as RabbitMQ sees them, from its plugin rabbitmq_prometheus. " +
			"Prometheus must scrape /metrics, " +
			"and /metrics/detailed with the families queue_coarse_metrics and queue_consumer_count.",
		Variables: []Variable{
			{Name: "instance", Label: "Node", Query: `label_values(rabbitmq_identity_info, instance)`, All: true},
			{Name: "vhost", Label: "Virtual host",
				Query: `label_values(rabbitmq_detailed_queue_messages_ready, vhost)`, All: true},
			{Name: "prefix", Label: "Prefix of the library", Text: "retry"},
		},
		Rows: []Row{
			{Title: "Queues", Panels: queuePanels()},
			{Title: "Messages", Panels: messagePanels()},
			{Title: "Nodes", Panels: nodePanels()},
		},
	}
}

func queuePanels() []Panel {
	const work = `!~"` + tiers + `|` + dead + `|` + orphan + `"`
	return []Panel{
		{
			Title: "Work queues: ready", Width: 8, Unit: "short",
			Description: "How many messages wait for a consumer, in the twenty longest of the queues that are " +
				"neither tiers nor dead letters.",
			Queries: []Query{{`topk(20, ` + queues(ready, work) + `)`, "{{queue}}"}},
		},
		{
			Title: "Work queues: unacknowledged", Width: 8, Unit: "short",
			Description: "How many messages consumers have and have not acknowledged.",
			Queries:     []Query{{`topk(20, ` + queues(unacked, work) + `)`, "{{queue}}"}},
		},
		{
			Title: "Work queues: consumers", Width: 8, Unit: "short",
			Description: "How many consumers each work queue has; 0 means that its app is down or has paused its " +
				"handler, which the board of apps shows.",
			Queries: []Query{{`topk(20, ` + queues(consumers, work) + `)`, "{{queue}}"}},
		},
		{
			Title: "Tiers and inboxes", Width: 8, Unit: "short",
			Description: "How many messages wait for their delay on each tier, or for their work queue in its inbox.",
			Queries:     []Query{{queues(all, `=~"`+tiers+`"`), "{{queue}}"}},
		},
		{
			Title: "Tiers: delay is over", Width: 8, Unit: "short", Warning: 32,
			Description: "How many messages of a tier have waited for their delay and are not yet confirmed by the " +
				"next queue; with 32 that stay, it forwards nothing.",
			Queries: []Query{{expired(`=~"` + tiers + `"`), "{{queue}}"}},
		},
		{
			Title: "Dead letters", Width: 4, Unit: "short", Warning: 1,
			Description: "How many dead letters each dead-letter queue has.",
			Queries:     []Query{{queues(all, `=~"`+dead+`"`), "{{queue}}"}},
		},
		{
			Title: "Orphans", Width: 4, Unit: "short", Warning: 1,
			Description: "How many messages came back to a work queue that was gone.",
			Queries:     []Query{{queues(all, `=~"`+orphan+`"`), "{{queue}}"}},
		},
	}
}

func messagePanels() []Panel {
	return []Panel{
		{
			Title: "Published", Width: 8, Unit: "ops",
			Description: "How many messages a second publishers send, how many of them reach a queue, and how many " +
				"are confirmed.",
			Queries: []Query{
				{rate("rabbitmq_global_messages_received_total"), "received"},
				{rate("rabbitmq_global_messages_routed_total"), "routed"},
				{rate("rabbitmq_global_messages_confirmed_total"), "confirmed"},
			},
		},
		{
			Title: "Unroutable", Width: 8, Unit: "ops", Warning: 0.01,
			Description: "How many messages a second have no queue: returned ones are published again, dropped " +
				"ones are lost.",
			Queries: []Query{
				{rate("rabbitmq_global_messages_unroutable_returned_total"), "returned"},
				{rate("rabbitmq_global_messages_unroutable_dropped_total"), "dropped"},
			},
		},
		{
			Title: "Delivered", Width: 8, Unit: "ops",
			Description: "How many messages a second consumers get, how many of them again, and how many they " +
				"acknowledge.",
			Queries: []Query{
				{rate("rabbitmq_global_messages_delivered_total"), "delivered"},
				{rate("rabbitmq_global_messages_redelivered_total"), "redelivered"},
				{rate("rabbitmq_global_messages_acknowledged_total"), "acknowledged"},
			},
		},
		{
			Title: "Left a tier", Width: 12, Unit: "ops",
			Description: "How many messages a second have reached the end of their delay, and how many the next " +
				"queue has confirmed.",
			Queries: []Query{
				{rate("rabbitmq_global_messages_dead_lettered_expired_total"), "delay is over"},
				{rate("rabbitmq_global_messages_dead_lettered_confirmed_total"), "confirmed"},
			},
		},
		{
			Title: "Given up by the broker", Width: 12, Unit: "ops", Warning: 0.01,
			Description: "How many messages a second are at the delivery limit of their queue, so that RabbitMQ " +
				"itself dead-letters them.",
			Queries: []Query{{rate("rabbitmq_global_messages_dead_lettered_delivery_limit_total"),
				"delivery limit"}},
		},
	}
}

func nodePanels() []Panel {
	return []Panel{
		{
			Title: "Alarms", Width: 8, Unit: "short", Warning: 1,
			Description: "1 while a node has an alarm: then RabbitMQ blocks all publishers, and failed messages " +
				"are held.",
			Queries: []Query{
				{`max by (instance) (rabbitmq_alarms_memory_used_watermark` + onNode + `)`, "{{instance}}: memory"},
				{`max by (instance) (rabbitmq_alarms_free_disk_space_watermark` + onNode + `)`, "{{instance}}: disk"},
			},
		},
		{
			Title: "Memory, as a share of the limit", Width: 8, Unit: "percentunit", Warning: 0.8, Critical: 1,
			Description: "At 100% the node raises its memory alarm.",
			Queries: []Query{{`max by (instance) (rabbitmq_process_resident_memory_bytes` + onNode +
				` / rabbitmq_resident_memory_limit_bytes` + onNode + `)`, "{{instance}}"}},
		},
		{
			Title: "Connections and channels", Width: 8, Unit: "short",
			Description: "How many connections and channels are open; an instance of an app on Connect has two " +
				"connections.",
			Queries: []Query{
				{`sum by (instance) (rabbitmq_connections` + onNode + `)`, "{{instance}}: connections"},
				{`sum by (instance) (rabbitmq_channels` + onNode + `)`, "{{instance}}: channels"},
			},
		},
	}
}

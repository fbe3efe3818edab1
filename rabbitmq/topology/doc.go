// Package topology describes what tiered retries need on RabbitMQ: the exchanges, queues and bindings of one work
// queue, as plain data. The same value is declared, verified, printed and exported.
//
//	work queue ──► handler fails ──► exchange retry, key <tier>.<work queue>
//	    ▲                               │
//	    │                               ▼
//	    │                            queue <work queue>.retry.<tier>, TTL = the tier
//	    │                               │ expired
//	    ├── key <tier>.<work queue> ── exchange retry.return
//	    │                               │ no such key
//	    └── key *.<work queue> ──────── exchange retry.return.any ── no such queue ──► queue retry.orphans
//
// A tier has the name of its delay in the largest unit that divides it: 125s, 2m, 1500ms.
//
// What has no key in retry.return goes to its alternate exchange, retry.return.any, whose own is retry.orphans. An
// exact key costs the broker less than a pattern. The pattern brings back what an exact key does not, such as messages
// of a tier that the schedule no longer has.
//
// A message comes back to the queue on which it failed and to no other queue, also if it was first published to a
// fan-out exchange. A dead letter goes to the queue <work queue>.dead.
//
// In the tier group "shop":
//
//	orders fails ──► exchange shop.retry ──► queue shop.retry.5s ── expired ──► exchange shop.retry.return
//	                 key 5s.orders           bound with 5s.#                    key 5s.orders
//
//	without an inbox: shop.retry.return ── no such key ──► exchange retry.return.any ──► orders
//	                                                       bound with *.orders
//
//	with an inbox:    shop.retry.return ──► queue orders.retry.inbox ──► exchange retry.return ──► orders
//	                                        bound with *.orders          key inbox.orders
//
// For W work queues (each consumer group has one) and T distinct delays, those of rules too, there are W × (T + 2)
// queues and W × (2 × T + 2) + 1 bindings, and <prefix>.orphans. With a jitter T is eight times as large. A tier group
// has T + W × 2 queues, with 21 ExtraTiers in T by default, and inboxes. With N partitions there are no tiers, but
// N + 1 more queues of each work queue.
//
// The builders of the packages config and config/amqp3 make a topology of the app's watermill-amqp configuration, and
// declare it at every Subscribe. Use this package directly in a deployment or an operator's tool, which declares or
// checks it without the app.
package topology

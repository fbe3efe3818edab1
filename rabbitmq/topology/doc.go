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
// What has no key in retry.return goes to its alternate exchange, retry.return.any, whose own is retry.orphans. An
// exact key costs the broker less than a pattern. The pattern brings back what an exact key does not, such as messages
// of a tier that the schedule no longer has.
//
// A message comes back to the queue on which it failed and to no other queue, also if it was first published to a
// fan-out exchange. A dead letter goes to the queue <work queue>.dead.
//
// The builders of the packages config and config/amqp3 make a topology of the app's watermill-amqp configuration, and
// declare it at every Subscribe. Use this package directly in a deployment or an operator's tool, which declares or
// checks it without the app.
package topology

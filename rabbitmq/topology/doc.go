// Package topology is the RabbitMQ side of tiered retries as plain data: the exchanges, queues and bindings that one work queue
// needs. The same value is declared, verified, printed and exported.
//
//	work queue ──► handler fails ──► exchange retry, key <tier>.<work queue>
//	    ▲                               │
//	    │                               ▼
//	    │                            queue <work queue>.retry.<tier>, TTL = the tier
//	    │                               │ expired
//	    └── key *.<work queue> ── exchange retry.return ── nobody there ──► queue retry.orphans
//
// A message comes back to the queue it failed on, and to no other, whatever exchange fed it first. What is given up goes to
// the queue <work queue>.dead.
//
// The builders of the packages config and configv3 make it from an app's watermill-amqp configuration, and declare it at every
// Subscribe. Used alone, this package is for whoever declares or looks at it without the app: a deployment, an operator's tool.
package topology

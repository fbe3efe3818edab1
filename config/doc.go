// Package config makes the RabbitMQ side of tiered retries: a builder around the app's own watermill-amqp v2 configuration, and
// the exchanges, queues and bindings as plain data, which are package topology's. For watermill-amqp v3 there is the module
// configv3, with the same names.
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
// The user needs the permission to configure, write and read all these names and the work queue; see the README.
package config

// Package letters defines what the dead letters of all backends have in common: a Letter and its Filter, the Cause by
// which letters are grouped, the options and the Summary of a redrive, and the Store that each backend implements.
//
// Package rabbitmq/deadletter is the Store of RabbitMQ, and package letters/relayletters has the one of other
// Pub/Subs. Code that gets a Store works on all of them.
package letters

// Package amqp is watermill-amqp in the major version that the tests are built for. The constant Major names it.
package amqp

// SpyTopologyBuilder is an app's own topology builder: the default one, which sends the name of every queue that it
// builds to Built.
type SpyTopologyBuilder struct {
	defaultTopologyBuilder
	Built chan string        // nil: nothing is sent
	After func(queue string) // is called after each build; nil: nothing is
}

package config_test

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
)

// All faults are reported at once. Package rabbitmq has examples of every method.
func ExampleNewBuilder() {
	app := amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/")
	app.Consume.NoRequeueOnNack = true
	_, err := config.NewBuilder(config.BuilderConfig{AMQP: app, Schedule: backoff.Constant(-time.Second, 1)})
	fmt.Println(err)
	// Output:
	// invalid BuilderConfig: Schedule: backoff: retry 1: delay -1s is too short: want at least 1ms
	// AMQP.Consume.NoRequeueOnNack is true: a nacked message would be dropped, and a shutdown nacks the message in flight; the middleware nacks only what must be redelivered
}

// All faults are reported at once. Package rabbitmq has an example of a whole reader.
func ExampleDeadLetterSubscriberConfig() {
	app := amqp.NewDurableQueueConfig("localhost:5672")
	app.Queue.GenerateName = nil
	_, err := config.DeadLetterSubscriberConfig(app, "")
	fmt.Println(err)
	// Output:
	// invalid configuration of a reader of dead letters: AMQP.Queue.GenerateName is nil, and there is no group: give the Group of the handler whose dead letters are read, or set a function that returns the name of a topic's queue
	// AMQP.Connection.AmqpURI cannot be read: it must be like amqp://user:password@host:5672/vhost (or amqps://), with reserved characters in user name and password percent-encoded
}

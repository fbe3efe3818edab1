package config_test

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/retry"
)

// All faults are reported at once.
func ExampleNewBuilder() {
	app := amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/")
	app.Consume.NoRequeueOnNack = true
	_, err := config.NewBuilder(config.Config{AMQP: app, Policy: retry.Policy{Schedule: backoff.Constant(-time.Second, 1)}})
	fmt.Println(err)
	// Output:
	// invalid Config: Policy.Schedule: backoff: retry 1: delay -1s is too short: want at least 1ms
	// invalid Config: AMQP.Consume.NoRequeueOnNack is true: a nacked message would be dropped, and a shutdown nacks the message in flight; the middleware nacks only what must be redelivered
}

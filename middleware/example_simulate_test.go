package middleware_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/retry"
)

// The outcomes of a message whose handler fails twice. Package retrytest makes such a configuration and prints the outcomes.
func ExampleTieredRetry_Simulate() {
	config := exampleConfig()
	config.Policy.Schedule = backoff.Schedule{time.Second, time.Minute}
	config.Policy.Rules = []retry.Rule{{Name: "closed", If: retry.Is(errClosed), Then: retry.Snooze(90 * time.Second)}}
	config.TiersWait = true
	tiered, err := config.Make(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for at, e := range tiered.Simulate(backend.SimulatedMessage{Handle: func(call int) error {
		switch call {
		case 1:
			return errors.New("no answer from the bank")
		case 2:
			return errClosed
		default:
			return nil
		}
	}}) {
		if e.Outcome != retry.Parked {
			fmt.Printf("%v %s %q, wait %v\n", at, e.Outcome, e.Rule, e.Delay)
		}
	}
	// Output:
	// 0s retried "", wait 1s
	// 1s snoozed "closed", wait 1m30s
	// 1m31s recovered "", wait 0s
}

var errClosed = errors.New("the bank is closed")

// Jitter spreads the retries of messages that fail together: on RabbitMQ over eight tiers for each delay of the schedule.
func ExampleTieredRetry_Simulate_jitter() {
	config := exampleConfig()
	config.Policy.Schedule = backoff.Schedule{time.Second, time.Minute}
	config.Policy.Jitter = 0.2
	config.TiersWait = true
	tiered, err := config.Make(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(config.Tiers())
	fails := func(int) error { return errors.New("no answer from the bank") }
	for _, e := range tiered.Simulate(backend.SimulatedMessage{Handle: fails}) {
		fmt.Printf("%s, wait %v to %v\n", e.Outcome, e.Delay, e.Delay+e.Spread)
	}
	// Output:
	// [1s 1025ms 1050ms 1075ms 1100ms 1125ms 1150ms 1175ms 1m 61500ms 63s 64500ms 66s 67500ms 69s 70500ms]
	// retried, wait 1s to 1.175s
	// retried, wait 1m0s to 1m10.5s
	// dead-lettered, wait 0s to 0s
}

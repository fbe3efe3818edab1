package retry_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

var (
	errRateLimit   = errors.New("the provider limits the rate")
	errMaintenance = errors.New("the provider is being maintained")
	errCancelled   = errors.New("the order was cancelled")
	errNotMine     = errors.New("another region has this order")
)

// printOutcome prints what the rules make of a failure.
func printOutcome(failure error, rules ...retry.Rule) {
	first := retrytest.Simulate(retrytest.SimulationConfig{
		Policy: retry.Policy{Schedule: backoff.Constant(time.Second, 3), Rules: rules},
		Fails: func(call int) error {
			if call > 1 {
				return nil
			}
			return failure
		},
	}).Attempts[0]
	fmt.Println(strings.TrimSpace(fmt.Sprintf("%s %v %s", first.Outcome, first.Delay, first.Rule)))
}

// The first rule that matches decides. A function can look at the failure record, too.
func ExampleRule() {
	rules := []retry.Rule{
		{Name: "cancelled", If: retry.Is(errCancelled), Then: retry.Discard()},
		{
			Name: "database",
			If: func(record retry.Record, err error) bool {
				return record.Failures < 3 && errors.Is(err, sql.ErrConnDone)
			},
			Then: retry.RetryAfter(time.Minute),
		},
	}
	printOutcome(fmt.Errorf("bill the order: %w", errCancelled), rules...)
	printOutcome(sql.ErrConnDone, rules...)
	printOutcome(errors.New("no answer from the bank"), rules...)
	// Output:
	// discarded 0s cancelled
	// retried 1m0s database
	// retried 1s
}

func ExampleIs() {
	matches := retry.Is(context.DeadlineExceeded)
	fmt.Println(matches(retry.Record{}, fmt.Errorf("ask the bank: %w", context.DeadlineExceeded)))
	// Output:
	// true
}

// As matches a type of errors, also an interface.
func ExampleAs() {
	matches := retry.As[net.Error]()
	fmt.Println(matches(retry.Record{}, fmt.Errorf("ask the bank: %w", &net.DNSError{Err: "no such host", Name: "bank"})))
	// Output:
	// true
}

// More patience than the other failures get.
func ExampleRetryWith() {
	printOutcome(sql.ErrConnDone,
		retry.Rule{Name: "database", If: retry.Is(sql.ErrConnDone), Then: retry.RetryWith(backoff.Constant(time.Minute, 30))})
	// Output:
	// retried 1m0s database
}

func ExampleRetryAfter() {
	printOutcome(sql.ErrConnDone,
		retry.Rule{Name: "database", If: retry.Is(sql.ErrConnDone), Then: retry.RetryAfter(time.Minute)})
	// Output:
	// retried 1m0s database
}

// The delay that the error requests comes first.
func ExampleSnooze() {
	rule := retry.Rule{Name: "rate limit", If: retry.Is(errRateLimit), Then: retry.Snooze(time.Minute)}
	printOutcome(errRateLimit, rule)
	printOutcome(backoff.RetryAfter(errRateLimit, 10*time.Second), rule)
	// Output:
	// snoozed 1m0s rate limit
	// snoozed 10s rate limit
}

func ExampleDeadLetter() {
	printOutcome(json.Unmarshal([]byte(`{"ID": `), &struct{}{}),
		retry.Rule{Name: "no JSON", If: retry.As[*json.SyntaxError](), Then: retry.DeadLetter("invalid")})
	// Output:
	// dead-lettered 0s no JSON
}

func ExampleDiscard() {
	printOutcome(errCancelled, retry.Rule{Name: "cancelled", If: retry.Is(errCancelled), Then: retry.Discard()})
	// Output:
	// discarded 0s cancelled
}

func ExampleGiveBack() {
	printOutcome(errNotMine, retry.Rule{Name: "not mine", If: retry.Is(errNotMine), Then: retry.GiveBack()})
	// Output:
	// given back 0s not mine
}

// No message can be handled for a while: the handler takes none.
func ExamplePause() {
	printOutcome(errMaintenance, retry.Rule{Name: "maintenance", If: retry.Is(errMaintenance), Then: retry.Pause(10 * time.Minute)})
	// Output:
	// snoozed 10m0s maintenance
}

// A rule uses an Action for several errors.
func ExampleAction() {
	later := retry.Snooze(time.Minute)
	rules := []retry.Rule{{If: retry.Is(errRateLimit), Then: later}, {If: retry.Is(errMaintenance), Then: later}}
	fmt.Println(len(rules), "rules")
	// Output:
	// 2 rules
}

func ExamplePolicy_Validate() {
	policy := retry.Policy{
		Schedule: backoff.Constant(time.Second, 3),
		Rules: []retry.Rule{
			{Name: "rate limit", If: retry.Is(errRateLimit)},
			{Name: "maintenance", Then: retry.Snooze(0)},
		},
		ExtraTiers: []time.Duration{time.Hour, -time.Minute},
	}
	fmt.Println(policy.Validate())
	// Output:
	// Rules[0].Then is not set: use RetryWith, RetryAfter, Snooze, DeadLetter, Discard, GiveBack or Pause
	// Rules[1].If is nil: use Is, As or a function of (Record, error)
	// Rules[1].Then: the delay is 0s: it must be more than 0 and at most 87600h0m0s
	// ExtraTiers: tier 2: delay -1m0s is too short: want at least 1ms
}

// Alert when a handler holds messages, and measure how long failures last.
func ExampleEvent() {
	observe := func(e retry.Event) {
		switch e.Outcome {
		case retry.Held:
			fmt.Println(e.Handler, "cannot publish:", e.Err)
		case retry.Recovered:
			fmt.Println(e.Handler, "recovered after failures:", e.Record.Failures, "in", e.Age)
		}
	}
	observe(retry.Event{Outcome: retry.Held, Handler: "billing", Err: errors.New("the tier is full")})
	observe(retry.Event{Outcome: retry.Recovered, Handler: "billing", Record: retry.Record{Failures: 2}, Age: 6 * time.Second})
	// Output:
	// billing cannot publish: the tier is full
	// billing recovered after failures: 2 in 6s
}

func ExampleDeadReasons() {
	for _, reason := range retry.DeadReasons() {
		fmt.Println(reason)
	}
	// Output:
	// exhausted
	// permanent
	// expired
	// unmarshal
	// too_large
	// refused
	// no_tier
}

func ExamplePanicError() {
	observe := func(e retry.Event) {
		var panicked *retry.PanicError
		if errors.As(e.Err, &panicked) {
			fmt.Println("panicked with", panicked.Value)
		}
	}
	observe(retry.Event{Err: &retry.PanicError{Value: "boom"}})
	// Output:
	// panicked with boom
}

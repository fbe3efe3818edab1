package backoff_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
)

func ExampleConstant() {
	fmt.Println(backoff.Constant(10*time.Second, 3))
	// Output: 10s*3
}

func ExampleLinear() {
	fmt.Println(backoff.Linear(10*time.Second, 4))
	// Output: 10s 20s 30s 40s
}

func ExampleExponential() {
	fmt.Println(backoff.Exponential(time.Second, 5, 4))
	fmt.Println(backoff.Exponential(time.Second, 1.5, 4))
	// Output:
	// 1s 5s 25s 125s
	// 1s 1500ms 2250ms 3375ms
}

func ExampleParseSchedule() {
	schedule, err := backoff.ParseSchedule("1s 5s 25s*3 10m")
	fmt.Println(len(schedule), "retries:", schedule, err)

	_, err = backoff.ParseSchedule("1s 5s 25*3")
	fmt.Println(err)
	// Output:
	// 6 retries: 1s 5s 25s*3 10m <nil>
	// backoff: schedule, word 3, "25*3": want a delay from 1ms to 87600h, such as 10s, 90s or 10s*3, and spaces between delays
}

func ExampleSchedule_Cap() {
	fmt.Println(backoff.Exponential(time.Second, 10, 6).Cap(time.Hour))
	// Output: 1s 10s 100s 1000s 1h*2
}

func ExampleSchedule_Tiers() {
	schedule := backoff.Schedule{10 * time.Second, time.Second, 10 * time.Second}
	fmt.Println(schedule.Tiers())
	// Output: [1s 10s]
}

func ExampleSchedule_UnmarshalText() {
	var settings struct {
		Retry backoff.Schedule
	}
	err := json.Unmarshal([]byte(`{"retry": "30s*2 1h"}`), &settings)
	fmt.Println(settings.Retry, err)
	// Output: 30s*2 1h <nil>
}

func ExampleParseTier() {
	tier, err := backoff.ParseTier("90s")
	fmt.Println(time.Duration(tier), err)

	_, err = backoff.ParseTier("60s")
	fmt.Println(err)
	// Output:
	// 1m30s <nil>
	// backoff: tier "60s": want the spelling "1m"
}

func ExamplePermanent() {
	errNoSuchCustomer := errors.New("no such customer")

	err := fmt.Errorf("bill: %w", backoff.Permanent(errNoSuchCustomer))
	fmt.Println(err, errors.Is(err, errNoSuchCustomer))
	// Output: bill: no such customer true
}

// orderDeleted is an app's own permanent error.
type orderDeleted struct{ id string }

func (e orderDeleted) Error() string { return "order " + e.id + " was deleted" }
func (orderDeleted) Permanent() bool { return true }

func ExampleIsPermanent() {
	fmt.Println(backoff.IsPermanent(fmt.Errorf("bill: %w", orderDeleted{"42"})))
	fmt.Println(backoff.IsPermanent(errors.New("connection refused")))
	// Output:
	// true
	// false
}

func ExampleRetryAfter() {
	errBusy := errors.New("too many requests")

	err := backoff.RetryAfter(errBusy, 30*time.Second)
	fmt.Println(err, errors.Is(err, errBusy))
	// Output: too many requests true
}

func ExampleRetryAfterDelay() {
	err := backoff.RetryAfter(errors.New("too many requests"), 30*time.Second)

	fmt.Println(backoff.RetryAfterDelay(fmt.Errorf("bill: %w", err)))
	// Output: 30s true
}

// The tiers between a second and an hour.
func ExampleLadder() {
	ladder := backoff.Ladder(time.Second, time.Hour)
	fmt.Println(len(ladder), "tiers:", backoff.Schedule(ladder))
	// Output:
	// 13 tiers: 1s 2s 5s 8s 19s 30s 71s 100s 200s 500s 800s 1900s 50m
}

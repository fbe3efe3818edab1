package letters_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// failed returns a dead letter, as a Store reads it.
func failed(id, reason string) *letters.Letter {
	at := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	return &letters.Letter{
		ID: id, Queue: "orders.dead", Target: "orders", Kind: letters.Library, Metadata: message.Metadata{"tenant": "acme"},
		Record: retry.Record{
			Failures: 4, FirstFailedAt: at.Add(-time.Minute), LastFailedAt: at, Reason: reason, DeadReason: retry.DeadReasonExhausted,
		},
	}
}

// The code is the same for each backend.
func ExampleStore() {
	outage := func(ctx context.Context, store letters.Store) error {
		filter := letters.Filter{Reason: regexp.MustCompile("connection refused")}
		for letter, err := range store.Browse(ctx, "orders.dead", filter) {
			if err != nil {
				return err
			}
			log.Println(letter.ID, letter.Record.Failures, letter.Record.Reason)
		}
		summary, err := store.Redrive(ctx, "orders.dead", letters.Redrive{
			Filter: filter, Canary: 10, Rate: 50, MaxRedead: 0.05,
			Progress: func(p letters.Progress) { log.Println(p.Phase, p.Done, "of", p.Total-p.Other, p.Left(), "left") },
		})
		if errors.Is(err, letters.ErrRedead) {
			log.Println("the cause is still there:", summary)
		}
		return err
	}
	_ = outage
}

func ExampleLetter() {
	text, err := json.Marshal(failed("order-1", "connection refused"))
	fmt.Println(string(text), err)
	// Output:
	// {"id":"order-1","queue":"orders.dead","target":"orders","kind":"library","record":{"failures":4,"first_failed_at":"2026-01-02T11:59:00Z","last_failed_at":"2026-01-02T12:00:00Z","reason":"connection refused","dead_reason":"exhausted"},"metadata":{"tenant":"acme"}} <nil>
}

// A handler that forwards dead letters by itself removes their records. Otherwise their retries would still be used up.
func ExampleFresh() {
	forward := func(dead *message.Message) ([]*message.Message, error) {
		return []*message.Message{letters.Fresh(dead)}, nil
	}
	dead := message.NewMessage("order-1", nil)
	dead.Metadata = message.Metadata{"tenant": "acme", "retry_failures": "4", "retry_dead_reason": "exhausted"}
	forwarded, err := forward(dead)
	fmt.Println(forwarded[0].UUID, forwarded[0].Metadata, err)
	// Output:
	// order-1 map[tenant:acme] <nil>
}

func ExampleFilter() {
	filter := letters.Filter{
		Reason:    regexp.MustCompile("refused"),
		OlderThan: time.Hour,
		Metadata:  map[string]string{"tenant": "acme"},
	}
	fmt.Println(filter.Validate())
	fmt.Println(filter.Match(failed("order-1", "connection refused"), time.Now()))
	fmt.Println(filter.Match(failed("order-2", "no money"), time.Now()))
	// Output:
	// <nil>
	// true
	// false
}

// The ID of a cause selects its letters.
func ExampleFilter_cause() {
	letter := failed("order-1", "order 17 is unknown")
	var groups letters.Groups
	groups.Add(failed("order-2", "order 18 is unknown"))
	id := groups.Sorted()[0].ID()
	fmt.Println(id, letters.Filter{Cause: id}.Match(letter, time.Now()))
	// Output:
	// c48e678d true
}

func ExampleGroups() {
	var groups letters.Groups
	groups.Add(failed("order-1", "dial tcp 10.0.0.7:5432: connection refused"))
	groups.Add(failed("order-2", "order 17 is unknown"))
	groups.Add(failed("order-3", "dial tcp 10.0.0.8:5432: connection refused"))
	for _, group := range groups.Sorted() {
		fmt.Println(group.Count, group.Reason, group.Example)
	}
	// Output:
	// 2 dial tcp <ip>:<n>: connection refused order-1
	// 1 order <n> is unknown order-2
}

// A letter of any backend becomes a test. The values of the field email are nowhere in its files.
func ExampleLetter_GoTest() {
	letter := failed("order-10", "no account of ann@example.com")
	letter.Payload = []byte(`{"number": 10, "email": "ann@example.com"}`)
	test, err := letter.GoTest(letters.GoTestConfig{Name: "billing", Redact: []string{"email"}})
	if err != nil {
		log.Fatal(err)
	}
	folder, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	if err := test.Write(folder, false); err != nil { // the folder of the handler, in an app
		log.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(test.Files)) {
		fmt.Println(name)
	}
	fmt.Println(test.Name, test.Redacted)
	// Output:
	// billing_order-10_test.go
	// testdata/order-10.json
	// TestBilling_order_10 [email]
}

package topology_test

import (
	"encoding/json"
	"fmt"
	"log"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// The definitions of several work queues have each object once.
func ExampleMerge() {
	var all []topology.Topology
	for _, queue := range []string{"orders", "mails"} {
		all = append(all, topology.New(topology.Config{Tiers: backoff.Schedule{time.Second}.Tiers()}, topology.Queue{Name: queue, Durable: true}))
	}
	definitions, err := topology.Merge(all...)
	if err != nil {
		log.Fatal(err)
	}
	for _, q := range definitions.Queues {
		fmt.Println(q.Name)
	}
	text, err := json.Marshal(definitions) // POST it to /api/definitions/%2F
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(json.Valid(text))
	// Output:
	// orders
	// retry.orphans
	// orders.dead
	// orders.retry.1s
	// mails
	// mails.dead
	// mails.retry.1s
	// true
}

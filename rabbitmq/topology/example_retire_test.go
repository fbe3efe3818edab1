package topology_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// layout returns the topologies of an app, with all tiers that were declared. A Builder returns them for its configuration, with its method
// Topology. Without a Builder, add the ExtraTiers of the configuration: in a group they are this ladder by default.
func layout(group string) (all []topology.Topology) {
	schedule := backoff.Exponential(time.Second, 5, 4)
	if group != "" {
		schedule = append(schedule, backoff.Ladder(time.Second, 12*24*time.Hour)...)
	}
	for _, queue := range []string{"orders", "mails"} {
		config := topology.Config{Tiers: schedule.Tiers(), TierGroup: group}
		all = append(all, topology.New(config, topology.Queue{Name: queue, Durable: true}))
	}
	return all
}

// messages asks the management API how many messages are on each queue. RabbitMQ does not state the number of a queue that was
// declared a moment ago.
func messages(ctx context.Context) (map[string]int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost:15672/api/queues/%2F?columns=name,messages", nil)
	if err != nil {
		return nil, err
	}
	request.SetBasicAuth("guest", "guest")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	var queues []struct {
		Name     string
		Messages *int
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the management API answers %s", response.Status)
	}
	if err := json.NewDecoder(response.Body).Decode(&queues); err != nil {
		return nil, err
	}
	numbers := map[string]int{}
	for _, queue := range queues {
		if queue.Messages != nil {
			numbers[queue.Name] = *queue.Messages
		}
	}
	return numbers, nil
}

// All work queues of an app have moved to the group shop: the tiers of their own are deleted.
func ExampleRetire() {
	connection, err := amqp091.Dial(os.Getenv("AMQP_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	ctx := context.Background()
	left, err := topology.Retire(ctx, connection, topology.RetireConfig{
		Old:      layout(""),
		Current:  layout("shop"),
		Messages: messages,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("not empty:", left)
}

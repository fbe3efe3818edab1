// Command example bills orders with an ordinary Watermill app. Some orders fail. They wait, come back when they are
// due, and are dead-lettered when their retries are used up.
//
//	go run ./example
//	go run ./example -backend rabbitmq -address amqp://guest:guest@localhost:5672/
//
// Package orders contains the app, which is the same on every backend. memory.go and rabbitmq.go contain what differs.
package main

import (
	"io"
	"os"

	"github.com/tieredretry/watermill-retry/example/orders"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	return orders.Main(args, stdout, stderr,
		orders.Choice{Name: "memory", Open: memory},
		orders.Choice{Name: "rabbitmq", Address: "$AMQP_URL, or " + localBroker + " if that is empty", Open: rabbitMQ},
	)
}

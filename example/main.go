// Command example bills orders with an ordinary Watermill app. Some orders fail. They wait, come back when they are
// due, and are dead-lettered when their retries are used up.
//
//	go run ./example
//	AMQP_URL=amqp://guest:guest@localhost:5672/ go run ./example -backend rabbitmq
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
		orders.Choice{Name: "rabbitmq", Open: rabbitMQ},
	)
}

// Command inbox kills processes with an inbox, restarts the broker and the database, redrives dead letters meanwhile,
// and counts the effects of every message. It starts the servers, but RabbitMQ, which is at AMQP_URL.
//
//	inbox [-backends names] [-messages n] [-kills n]
//
// A line for each backend has the counts. A number that must be 0 and is not is an error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	play() // a process of the run
	backends := flag.String("backends", "rabbitmq-v2,redis", "the backends, one after the other")
	messages := flag.Int("messages", 5000, "how many messages")
	kills := flag.Int("kills", 30, "how often a process is killed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var faults []error
	for name := range strings.SplitSeq(*backends, ",") {
		counts, err := measure(ctx, name, *messages, *kills)
		fmt.Println(counts)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", name, err))
		}
	}
	if err := errors.Join(faults...); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

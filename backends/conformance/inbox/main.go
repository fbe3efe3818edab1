// Command inbox kills processes with an inbox, restarts the broker and the database, redrives dead letters meanwhile,
// and counts the effects of every message. It starts the servers, but RabbitMQ, which is at AMQP_URL.
//
//	inbox [-backends names] [-brokers 4.0=amqp://...,4.3=amqp://...] [-tool command] [-messages n] [-kills n]
//
// With -brokers, RabbitMQ is each of these, one after the other. The tool (verbs: kill, start) restarts them by name.
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

	"github.com/tieredretry/watermill-retry/backends/conformance/servers"
	"github.com/tieredretry/watermill-retry/tools/child"
)

func main() {
	child.Main(roles)
	backends := flag.String("backends", "rabbitmq,redis", "the backends, one after the other")
	brokers := flag.String("brokers", "", "name=url,... of RabbitMQ; AMQP_URL if empty")
	tool := flag.String("tool", "", "the command that kills and starts the brokers by name")
	messages := flag.Int("messages", 5000, "how many messages")
	kills := flag.Int("kills", 30, "how often a process is killed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var faults []error
	for name := range strings.SplitSeq(*backends, ",") {
		nodes := []string{""}
		if *brokers != "" && strings.HasPrefix(name, "rabbitmq") {
			nodes = strings.Split(*brokers, ",")
		}
		for _, node := range nodes {
			counts, err := measure(ctx, name, broker{node, *tool}, *messages, *kills)
			fmt.Println(counts)
			if err != nil {
				faults = append(faults, fmt.Errorf("%s %s: %w", name, node, err))
			}
		}
	}
	if err := errors.Join(faults...); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A broker is a RabbitMQ with a name, as name=url. Empty: the server of the backend.
type broker struct{ node, tool string }

func (b broker) name() string {
	name, _, _ := strings.Cut(b.node, "=")
	return name
}

// server returns the broker, which a command restarts by its name.
func (b broker) server() (*servers.Server, error) {
	name, url, found := strings.Cut(b.node, "=")
	if !found {
		return nil, errors.New("-brokers: an entry does not have the form name=url")
	}
	s := &servers.Server{URL: url, Stop: func() {}}
	if b.tool != "" {
		s.Restart = func(context.Context) error {
			for _, verb := range []string{"kill", "start"} {
				if _, err := child.Shell(b.tool, verb, name); err != nil {
					return err
				}
			}
			return nil
		}
	}
	return s, nil
}

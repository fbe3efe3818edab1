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

	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
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
		nodes := []node{{}}
		if *brokers != "" && strings.HasPrefix(name, "rabbitmq") {
			nodes = nil
			for entry := range strings.SplitSeq(*brokers, ",") {
				version, url, _ := strings.Cut(entry, "=")
				nodes = append(nodes, node{name: version, url: url, tool: *tool})
			}
		}
		for _, n := range nodes {
			counts, err := measure(ctx, name, n, *messages, *kills)
			fmt.Println(counts)
			if err != nil {
				faults = append(faults, fmt.Errorf("%s %s: %w", name, n.name, err))
			}
		}
	}
	if err := errors.Join(faults...); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A node is a RabbitMQ that the tool kills and starts by its name. Empty: the server of the backend.
type node struct{ name, url, tool string }

// server returns the server of a run. Its Restart is nil where it cannot be restarted.
func (n node) server(ctx context.Context, backend registry.Entry) (s *servers.Server, err error) {
	kill, start := os.Getenv("BROKER_KILL"), os.Getenv("BROKER_START")
	if n.name != "" {
		s, kill, start = &servers.Server{URL: n.url, Stop: func() {}}, n.tool+" kill "+n.name, n.tool+" start "+n.name
	} else if s, err = backend.Server(ctx); err != nil {
		return nil, err
	}
	if s.Restart == nil && kill != "" && start != "" {
		s.Restart = func(context.Context) error {
			_, err := child.Shell(kill)
			if err == nil {
				_, err = child.Shell(start)
			}
			return err
		}
	}
	return s, nil
}

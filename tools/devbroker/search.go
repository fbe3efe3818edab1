//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/tieredretry/watermill-retry/tools/server"
)

// way is one way to get a broker.
type way struct {
	name string
	// open returns the reason why this way cannot be used, or "".
	open func(context.Context) (whyNot string)
	take func(context.Context) (broker, error)
}

// places have rabbitmq-server and rabbitmqctl. What Debian has on the PATH are wrappers, which run only as root or as
// the user rabbitmq, and ignore the environment.
var places = []string{
	"/usr/lib/rabbitmq/bin", // Debian, Ubuntu, Fedora
	"/opt/homebrew/sbin",
	"/opt/homebrew/opt/rabbitmq/sbin",
	"/usr/local/sbin",
	"/usr/local/opt/rabbitmq/sbin",
}

// searchOrder lists the ways in their order: the developer's choice, a running broker, an installed RabbitMQ, a
// container, and last an installation, which changes the machine.
func searchOrder() []way {
	var rabbit string
	return []way{
		{
			name: "AMQP_URL",
			open: func(context.Context) string { return unless(os.Getenv("AMQP_URL") != "", "not set") },
			take: named,
		},
		{
			name: "devbroker up",
			open: func(context.Context) string { return unless(isUp(), "no broker is up") },
			take: func(context.Context) (broker, error) { return borrowed() },
		},
		{
			name: "installed RabbitMQ",
			open: func(context.Context) string {
				var found bool
				rabbit, found = server.Find("rabbitmq-server", places...)
				return unless(found, "none found")
			},
			take: func(ctx context.Context) (broker, error) { return startNode(ctx, rabbit) },
		},
		{name: "Docker", open: dockerAnswers, take: startContainer},
		{
			name: "apt-get",
			open: server.Usable,
			take: func(ctx context.Context) (broker, error) {
				rabbit, err := server.Program(ctx, "rabbitmq-server", "rabbitmq-server",
					[]string{"rabbitmq-server", "epmd.socket", "epmd.service"}, places...)
				if err != nil {
					return broker{}, fmt.Errorf("%w, start Docker, or set AMQP_URL", err)
				}
				return startNode(ctx, rabbit)
			},
		},
	}
}

// find takes the first way that is open. If that way fails, find returns its error and tries no other: another
// version of RabbitMQ would hide the fault.
func find(ctx context.Context, ways []way) (broker, error) {
	first, tried := choose(ctx, ways)
	if first == nil {
		return broker{}, errors.New("no RabbitMQ found. Tried:\n  " + strings.Join(tried, "\n  ") +
			"\nSet AMQP_URL=amqp://user:password@host:port/, or install RabbitMQ, or start Docker.")
	}
	b, err := first.take(ctx)
	if err != nil {
		return broker{}, fmt.Errorf("%s: %w", first.name, err)
	}
	return b, nil
}

func choose(ctx context.Context, ways []way) (open *way, tried []string) {
	for i := range ways {
		whyNot := ways[i].open(ctx)
		if whyNot == "" {
			return &ways[i], tried
		}
		tried = append(tried, ways[i].name+": "+whyNot)
	}
	return nil, tried
}

func unless(fine bool, whyNot string) string {
	if fine {
		return ""
	}
	return whyNot
}

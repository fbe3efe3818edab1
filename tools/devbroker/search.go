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

// places have rabbitmq-server and rabbitmqctl. What Debian has on the PATH are wrappers, which run only as root or as
// the user rabbitmq, and ignore the environment.
var places = []string{
	"/usr/lib/rabbitmq/bin", // Debian, Ubuntu, Fedora
	"/opt/homebrew/sbin",
	"/opt/homebrew/opt/rabbitmq/sbin",
	"/usr/local/sbin",
	"/usr/local/opt/rabbitmq/sbin",
}

// find takes the developer's choice, a running broker, an installed RabbitMQ, a container, or last an installation,
// which changes the machine. If the first way that is open fails, find returns its error and tries no other: another
// version of RabbitMQ would hide the fault.
func find(ctx context.Context) (b broker, err error) {
	way := "AMQP_URL"
	var noDocker, noPackage string
	rabbit, installed := server.Find("rabbitmq-server", places...)
	switch {
	case os.Getenv("AMQP_URL") != "":
		b, err = named()
	case isUp():
		way = "devbroker up"
		b, err = borrowed()
	case installed:
		way = "installed RabbitMQ"
		b, err = startNode(ctx, rabbit)
	default:
		if noDocker = dockerAnswers(ctx); noDocker == "" {
			way = "Docker"
			b, err = startContainer(ctx)
		} else if noPackage = server.Usable(ctx); noPackage == "" {
			way = "apt-get"
			b, err = installNode(ctx)
		} else {
			return b, errors.New(strings.Join([]string{"no RabbitMQ found. Tried:", "AMQP_URL: not set",
				"devbroker up: no broker is up", "installed RabbitMQ: none found", "Docker: " + noDocker,
				"apt-get: " + noPackage}, "\n  ") +
				"\nSet AMQP_URL=amqp://user:password@host:port/, or install RabbitMQ, or start Docker.")
		}
	}
	if err != nil {
		return broker{}, fmt.Errorf("%s: %w", way, err)
	}
	return b, nil
}

func installNode(ctx context.Context) (broker, error) {
	rabbit, err := server.Program(ctx, "rabbitmq-server", "rabbitmq-server",
		[]string{"rabbitmq-server", "epmd.socket", "epmd.service"}, places...)
	if err != nil {
		return broker{}, fmt.Errorf("%w, start Docker, or set AMQP_URL", err)
	}
	return startNode(ctx, rabbit)
}

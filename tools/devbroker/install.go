//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/tieredretry/watermill-retry/tools/server"
)

// aptInstall installs RabbitMQ and leaves its service stopped.
func aptInstall(ctx context.Context) (installed, error) {
	say("installing RabbitMQ with apt-get, once; this takes a minute")
	var rabbit installed
	there := func() (found bool) {
		rabbit, found = findServer(serverPlaces(), "")
		return found
	}
	err := server.Install(ctx, there, []string{"rabbitmq-server"}, "rabbitmq-server", "epmd.socket", "epmd.service")
	if err != nil {
		return installed{}, fmt.Errorf("%w; install RabbitMQ yourself, start Docker, or set AMQP_URL", err)
	}
	if !there() {
		return installed{}, errors.New("RabbitMQ is installed, but rabbitmq-server is in none of the expected folders")
	}
	return rabbit, nil
}

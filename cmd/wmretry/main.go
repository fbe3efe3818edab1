// Command wmretry looks at the dead letters and orphans of RabbitMQ, brings them back, and removes them. It also
// shows work queues, tiers and the topology. `wmretry --help` lists its commands.
package main

import (
	"os"

	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/cli"
)

func main() { os.Exit(cli.Main()) }

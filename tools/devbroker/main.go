//go:build unix

// Command devbroker finds a RabbitMQ for the tests and the demo, or starts a private one.
//
//	devbroker exec -- command args...   run the command with the broker's variables set; stop what was started
//	devbroker up                        start a broker that stays, and print its variables
//	devbroker down                      stop that broker and remove its data
//
// Build it first, as "make devbroker" does: up notes its broker beside the program, and a program of go run is removed.
//
// It looks for a broker in this order: AMQP_URL; a broker that up started; an installed RabbitMQ, which it starts as
// a private node; Docker. Last, on Debian or Ubuntu, it installs RabbitMQ (DEVBROKER_INSTALL=no forbids that).
//
// The variables are AMQP_URL, AMQP_MANAGEMENT_URL, AMQP_PROMETHEUS_URL and those below. BROKER_CTL is a command that
// runs rabbitmqctl against the broker. It is not set where there is no such command. For a private node, BROKER_KILL
// is a command that sends it SIGKILL, as a crash would, and BROKER_START is one that starts it again on its data.
// A broker of your own needs all of them. By default the management API is at the AMQP port plus 10,000, and the
// metrics are at that plus 20. In a container, AMQP_TLS_ADDRESS is where its port 5671 is reached.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

const usage = `usage:
  devbroker exec -- command args...   run the command with a RabbitMQ
  devbroker up                        start a RabbitMQ that keeps running, print its variables
  devbroker down                      stop that RabbitMQ, remove its data
Run it as a built program (make devbroker), not by go run: up notes its RabbitMQ beside the program.`

func main() {
	// When the reader of a pipe ends (make test | head), this process must still stop the broker.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), endings...)
	defer stop()

	status, err := run(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "devbroker:", err)
	}
	os.Exit(status)
}

func run(ctx context.Context, args []string) (status int, err error) {
	verb := ""
	if len(args) > 0 {
		verb, args = args[0], args[1:]
	}
	switch {
	case verb == "exec":
		if len(args) > 0 && args[0] == "--" {
			args = args[1:]
		}
		if len(args) == 0 {
			break
		}
		return execute(ctx, args)
	case verb == "up" && len(args) == 0:
		return up(ctx)
	case verb == "down" && len(args) == 0:
		return down()
	case (verb == "kill" || verb == "start") && len(args) == 1: // BROKER_KILL, BROKER_START
		return crash(ctx, verb, args[0])
	}
	return 2, errors.New(usage)
}

func execute(ctx context.Context, args []string) (int, error) {
	b, err := find(ctx)
	if err != nil {
		return failed(ctx), err
	}
	defer b.stop()
	return command(ctx, b.environ(os.Environ()), args)
}

func up(ctx context.Context) (int, error) {
	b, err := find(ctx)
	if err != nil {
		return failed(ctx), err
	}
	if err := b.save(); err != nil {
		b.stop()
		return 1, err
	}
	for _, variable := range b.environ(nil) {
		name, value, _ := strings.Cut(variable, "=")
		fmt.Println("export " + name + "=" + quote(value))
	}
	return 0, nil
}

func down() (int, error) {
	b, err := saved()
	if errors.Is(err, os.ErrNotExist) {
		return 0, errors.New("no broker is up")
	}
	if err != nil {
		return 1, err
	}
	b.stop()
	if err := forget(); err != nil {
		return 1, err
	}
	say("stopped")
	return 0, nil
}

// failed returns the exit status of a search that found nothing or was interrupted.
func failed(ctx context.Context) int {
	if ctx.Err() != nil {
		return 130
	}
	return 1
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "devbroker: "+format+"\n", args...)
}

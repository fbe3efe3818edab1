//go:build unix

// Command devbroker finds a RabbitMQ for the tests and the demo, or starts one that nobody else sees.
//
//	devbroker exec -- command args...   run the command with AMQP_URL, AMQP_MANAGEMENT_URL and BROKER_CTL set; stop what was started
//	devbroker up                        start a broker that stays, and print its variables
//	devbroker down                      stop that broker and remove its data
//
// To the command and in what up prints, BROKER_KILL and BROKER_START are commands that SIGKILL a private node, as a crash
// would, and start it again on its data.
//
// It looks for, in this order: AMQP_URL; a broker left by up; an installed RabbitMQ, started as a private node; Docker;
// and on Debian or Ubuntu it installs RabbitMQ (DEVBROKER_INSTALL=no forbids that). BROKER_CTL is a command that runs
// rabbitmqctl against the broker, and unset where there is none.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

const usage = `usage:
  devbroker exec -- command args...   run the command with a RabbitMQ
  devbroker up                        start one that stays, print its variables
  devbroker down                      stop it, remove its data`

func main() {
	// A reader that has gone (make test | head) must not end us before the broker is stopped.
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
	b, err := find(ctx, searchOrder())
	if err != nil {
		return failed(ctx), err
	}
	defer b.stop()
	return command(ctx, b.environ(os.Environ()), args)
}

func up(ctx context.Context) (int, error) {
	b, err := find(ctx, searchOrder())
	if err != nil {
		return failed(ctx), err
	}
	if err := b.save(); err != nil {
		b.stop()
		return 1, err
	}
	for _, variable := range b.variables() {
		fmt.Println("export " + variable.name + "=" + quote(variable.value))
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
	return 0, forget()
}

// failed is the exit status of a search that found nothing, or that a signal ended.
func failed(ctx context.Context) int {
	if ctx.Err() != nil {
		return 130
	}
	return 1
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "devbroker: "+format+"\n", args...)
}

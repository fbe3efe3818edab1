// Command outage is an app that bills orders, and the payment provider that it needs, as two programs. Start the app
// without the provider: the orders become dead letters. docs/dead-letters.md looks at them and brings them back.
//
//	go run ./example/outage -orders 40    # the app: it ends when each of 40 orders is billed or a dead letter
//	go run ./example/outage               # the app, until Ctrl-C
//	go run ./example/outage -provider     # the provider, until Ctrl-C
//
// The queues stay on the broker of AMQP_URL.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"
)

// options are the flags.
type options struct {
	provider bool
	address  string
	orders   int
	uri      string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	opts, err := parse(os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err == nil && opts.provider:
		err = serve(ctx, opts.address, os.Stdout)
	case err == nil:
		err = runApp(ctx, opts, os.Stdout)
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "outage:", err)
		stop()
		os.Exit(1)
	}
}

func parse(args []string, out io.Writer) (options, error) {
	opts := options{uri: cmp.Or(os.Getenv("AMQP_URL"), "amqp://guest:guest@localhost:5672/")}
	flags := flag.NewFlagSet("outage", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.BoolVar(&opts.provider, "provider", false, "be the payment provider, in place of the app")
	flags.StringVar(&opts.address, "address", "127.0.0.1:9090", "`host:port` of the payment provider")
	flags.IntVar(&opts.orders, "orders", 0, "publish so many orders, and end when each is billed or dead (default: "+
		"bill until Ctrl-C)")
	if err := flags.Parse(args); err != nil {
		return opts, err
	}
	if flags.NArg() > 0 {
		return opts, errors.New("arguments are not allowed, only flags: -h lists them")
	}
	if opts.orders < 0 {
		return opts, fmt.Errorf("-orders is %d: it must not be negative", opts.orders)
	}
	return opts, nil
}

// serve is the payment provider.
func serve(ctx context.Context, address string, out io.Writer) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("the provider cannot answer at %s, choose another -address: %w", address, err)
	}
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	_, _ = fmt.Fprintln(out, "the provider answers at", address)
	for {
		connection, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		_ = connection.Close()
	}
}

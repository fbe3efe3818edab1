// Command example runs the app of ../../example on other backends: the same orders, the same timeline, the same last
// line.
//
//	go run -C backends ./example -backend nats
//
// It starts a private server. The backends are listed in package registry. The code that an app needs for a backend is
// in the folder above, one file for each.
package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/backends"
	"github.com/tieredretry/watermill-retry/backends/registry"
	"github.com/tieredretry/watermill-retry/example/orders"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var choices []orders.Choice
	for _, e := range registry.Demos() {
		choices = append(choices, orders.Choice{
			Name: e.Demo.Name,
			Open: func(ctx context.Context, opts orders.Options, logger watermill.LoggerAdapter) (*orders.Backend,
				error) {
				return open(ctx, e, opts, logger)
			},
		})
	}
	return orders.Main(args, stdout, stderr, choices...)
}

// open connects the app to a private server.
func open(
	ctx context.Context, e registry.Entry, opts orders.Options, logger watermill.LoggerAdapter,
) (_ *orders.Backend, err error) {
	var closers []func() error // the last opened first
	opened := func(close func() error) { closers = append([]func() error{close}, closers...) }
	defer func() {
		for i := 0; err != nil && i < len(closers); i++ {
			err = errors.Join(err, closers[i]())
		}
	}()
	server, err := e.Start(ctx)
	if err != nil {
		return nil, err
	}
	opened(func() error { server.Stop(); return nil })
	backend := e.Open(server.URL, logger)
	app := backends.App{Group: "billing", Prefix: "retry", Schedule: opts.Schedule}
	retries, err := backend.Connect(app)
	if err != nil {
		return nil, err
	}
	opened(retries.Close)
	letters, letterTopic, err := backend.DeadLetters(app, orders.Handler, "orders")
	if err != nil {
		return nil, err
	}
	opened(letters.Close)
	return &orders.Backend{
		Name: e.Demo.Title, Topic: "orders", Retries: retries,
		DeadLetters: letters, DeadLetterTopic: letterTopic,
		Closers: closers,
	}, nil
}

package orders

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/backoff"
)

const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// Options are the flags.
type Options struct {
	Backend  string
	Schedule backoff.Schedule
	Verbose  bool
}

// Open connects to a backend.
type Open func(context.Context, Options, watermill.LoggerAdapter) (*Backend, error)

// Choice is a backend that the command offers.
type Choice struct {
	Name string
	Open Open
}

// Main is the command: it bills orders on one of the backends, and returns the exit status.
func Main(args []string, stdout, stderr io.Writer, choices ...Choice) int {
	opts, open, err := parse(args, stdout, choices)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "example:", err)
		return exitUsage
	}
	// A closed pipe or terminal ends the demo like Ctrl-C: its queues must not stay on the broker.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // without this, a closed pipe would end the process at once
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// a second Ctrl-C ends the process at once
	context.AfterFunc(ctx, func() { signal.Reset(os.Interrupt, syscall.SIGTERM) })
	if err := run(ctx, opts, open, stdout); err != nil {
		_, _ = fmt.Fprintln(stderr, "example:", strings.ReplaceAll(err.Error(), "\n", "; "))
		if ctx.Err() != nil {
			return exitInterrupted
		}
		return exitFailed
	}
	return 0
}

func run(ctx context.Context, opts Options, open Open, out io.Writer) error {
	var logger watermill.LoggerAdapter = watermill.NopLogger{}
	if opts.Verbose {
		logger = watermill.NewStdLogger(false, false) // to stderr
	}
	backend, err := open(ctx, opts, logger)
	if err != nil {
		return err
	}
	err = demo(ctx, opts, backend, out, logger)
	for _, close := range backend.Closers {
		err = errors.Join(err, close())
	}
	return err
}

func parse(args []string, stdout io.Writer, choices []Choice) (opts Options, open Open, err error) {
	var names []string
	for _, c := range choices {
		names = append(names, c.Name)
	}
	flags := flag.NewFlagSet("example", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // an error is one line, without the usage
	flags.StringVar(&opts.Backend, "backend", names[0], "one of "+strings.Join(names, ", "))
	flags.TextVar(&opts.Schedule, "schedule",
		backoff.Schedule{500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second},
		"the delay before each retry, such as \"1s 5s 25s*3\"")
	flags.BoolVar(&opts.Verbose, "v", false, "write Watermill's log to stderr")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			flags.SetOutput(stdout)
			flags.PrintDefaults()
		}
		return opts, nil, err
	}
	if flags.NArg() > 0 {
		return opts, nil, errors.New("arguments are not allowed, only flags: -h lists them")
	}
	if err := opts.Schedule.Validate(); err != nil {
		return opts, nil, fmt.Errorf("-schedule: %w", err)
	}
	for _, c := range choices {
		if c.Name == opts.Backend {
			return opts, c.Open, nil
		}
	}
	return opts, nil, fmt.Errorf("-backend is %q: it must be one of %s", opts.Backend, strings.Join(names, ", "))
}

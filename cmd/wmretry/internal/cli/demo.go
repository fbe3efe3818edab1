package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

const (
	defaultDemoQueue = "wmretry-demo"
	leastDemo        = 10
	mostDemo         = 20_000
	demoTimeout      = 5 * time.Minute
	demoPause        = 100 * time.Millisecond
)

type demoFlags struct {
	queue                  string
	letters                int
	clean, consume, broken bool
}

func newDemoCommand(e *env) *cobra.Command {
	f := demoFlags{queue: defaultDemoQueue}
	c := &cobra.Command{
		Use:   "demo",
		Short: "Fill a queue with letters of several kinds, to try the other commands",
		Long: `Declares a work queue with an app of this library, and fills its dead-letter queue: retries that were used up, permanent errors,
headers of many types, a hostile reason, letters of the broker at its delivery limit, of Watermill's PoisonQueue, of no record, and one
orphan. Then it prints commands to try.

The work queue is wmretry-demo, its dead letters are in wmretry-demo.dead, and its prefix is wmretry-demo-retry. With --queue X they
are X, X.dead and X-retry. Nothing of another app is touched. "wmretry demo --clean" removes all of it, with the letters.
--consume runs the handler of the demo, whose dependency is back: letters that are redriven succeed, but those with permanent errors.
With --broken the dependency is still down, and they die again.`,
		Example: `  wmretry demo
  wmretry demo --letters 5000
  wmretry demo --consume            # in another terminal, before a redrive
  wmretry demo --consume --broken   # to see a canary die
  wmretry demo --clean`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return e.demo(c.Context(), f) },
	}
	c.Flags().StringVar(&f.queue, "queue", f.queue, "name of the work queue, and beginning of all other names")
	c.Flags().IntVar(&f.letters, "letters", 60, fmt.Sprintf("how many letters, from %d to %d", leastDemo, mostDemo))
	c.Flags().BoolVar(&f.clean, "clean", false, "remove all that the demo has declared, with the letters")
	c.Flags().BoolVar(&f.consume, "consume", false, "run the handler of the demo until Ctrl-C")
	c.Flags().BoolVar(&f.broken, "broken", false, "with --consume: its dependency is still down")
	c.MarkFlagsMutuallyExclusive("clean", "consume")
	return c
}

func (e *env) demo(ctx context.Context, f demoFlags) error {
	switch {
	case f.letters < leastDemo || f.letters > mostDemo:
		return usage("--letters is %d: it must be from %d to %d", f.letters, leastDemo, mostDemo)
	case f.broken && !f.consume:
		return usage("--broken needs --consume")
	}
	config, err := e.config()
	if err != nil {
		return err
	}
	if err := e.reach(ctx, config); err != nil {
		return err
	}
	d := demo{env: e, config: config, work: f.queue, dead: deadletter.QueueOf(f.queue), own: f.queue + "-retry", orphans: f.queue + "-retry.orphans"}
	if d.connection, err = amqp091.DialConfig(config.URI, amqp091.Config{TLSClientConfig: config.TLS}); err != nil {
		return e.unreachable(config.URI, err)
	}
	defer func() { _ = d.connection.Close() }()
	if err := d.openChannel(); err != nil {
		return err
	}
	switch {
	case f.clean:
		return d.clean()
	case f.consume:
		return d.run(ctx, f.broken)
	}
	ctx, cancel := context.WithTimeout(ctx, demoTimeout)
	defer cancel()
	// A call on the channel has no context.
	defer context.AfterFunc(ctx, func() { _ = d.connection.CloseDeadline(time.Now().Add(time.Second)) })()
	if err := d.fill(ctx, f.letters); err != nil {
		return fmt.Errorf("%w; `wmretry demo --clean` removes what is there", err)
	}
	return d.advise(f.letters)
}

// demo is one run of the command.
type demo struct {
	*env
	config       deadletter.Config
	connection   *amqp091.Connection
	channel      *amqp091.Channel
	work, dead   string
	own, orphans string // prefix and orphans of the demo
}

// demoSchedule is short: a letter dies in a moment.
var demoSchedule = backoff.Schedule{100 * time.Millisecond, 200 * time.Millisecond}

// gone is the work queue that is deleted while a message waits.
func (d *demo) gone() string { return d.work + "-gone" }

const goneDelay = 2 * time.Second

// fill makes the letters, in several ways.
func (d *demo) fill(ctx context.Context, letters int) error {
	before, err := d.count(d.dead)
	if err != nil {
		return err
	}
	orphans, err := d.count(d.orphans)
	if err != nil {
		return err
	}
	others := max(letters/20, 1)
	limited, poisoned, unknown := others, others, others
	ofHandler := letters - limited - poisoned - unknown
	meter, start := d.meter("demo", "dead"), time.Now()
	defer meter.stop()
	if err := d.handle(ctx, ofHandler, func() error {
		return d.await(ctx, d.dead, before+ofHandler, func(dead int) error {
			meter.count(max(dead-before, 0), time.Since(start))
			return nil
		})
	}); err != nil {
		return err
	}
	for _, step := range []func(context.Context, int) error{d.limit, d.poison, d.unknown} {
		if err := step(ctx, others); err != nil {
			return err
		}
	}
	if err := d.await(ctx, d.dead, before+letters, nil); err != nil {
		return err
	}
	if err := d.orphan(ctx); err != nil {
		return err
	}
	return d.await(ctx, d.orphans, orphans+1, nil)
}

// await waits until a queue has so many messages. each, which may be nil, is called with each number of messages until then.
func (d *demo) await(ctx context.Context, queue string, least int, each func(int) error) error {
	said := time.Now()
	for {
		n, err := d.count(queue)
		if err == nil && each != nil {
			err = each(n)
		}
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("%s has %s, and the demo waits for %s: %w", safe(queue), plural(n, "message", "messages"), thousands(least), ctx.Err())
		case err != nil || n >= least:
			return err
		case time.Since(said) >= lineEvery:
			said = time.Now()
			_, _ = fmt.Fprintf(d.stderr, "%s has %s: the demo waits for %s. Ctrl-C ends it\n", safe(queue), plural(n, "message", "messages"), thousands(least))
		}
		select {
		case <-ctx.Done():
		case <-time.After(demoPause):
		}
	}
}

// openChannel opens the channel, on which the broker confirms each message.
func (d *demo) openChannel() (err error) {
	if d.channel, err = d.connection.Channel(); err != nil {
		return err
	}
	return d.channel.Confirm(false)
}

// put publishes to a queue, and waits until the broker has confirmed the message.
func (d *demo) put(ctx context.Context, queue string, publishing amqp091.Publishing) error {
	publishing.DeliveryMode = amqp091.Persistent
	confirm, err := d.channel.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, publishing)
	if err != nil {
		return err
	}
	acked, err := confirm.WaitContext(ctx)
	if err == nil && !acked {
		err = errors.New("the broker does not take it")
	}
	if err != nil {
		return fmt.Errorf("no confirm of a message to %s: %w", safe(queue), err)
	}
	return nil
}

// count returns how many messages a queue has. One that is not there has none.
func (d *demo) count(queue string) (int, error) {
	state, err := d.channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	var refused *amqp091.Error
	if errors.As(err, &refused) && refused.Code == amqp091.NotFound {
		return 0, d.openChannel() // the error has closed the channel before
	}
	return state.Messages, err
}

func (d *demo) advise(letters int) error {
	if d.json {
		return d.printJSON(map[string]any{"queue": d.work, "letters": letters, "orphans": 1})
	}
	_, err := fmt.Fprintf(d.stdout, `%s are in %s, and 1 orphan in %s. Try:

%s
`, plural(letters, "letter", "letters"), safe(d.dead), safe(d.orphans), strings.NewReplacer("QUEUE", safe(d.work), "PREFIX", safe(d.own)).Replace(`  wmretry status --prefix PREFIX
  wmretry dead list QUEUE
  wmretry dead list QUEUE --group
  wmretry dead show QUEUE ID                        # with an id of the list
  wmretry dead redrive QUEUE --reason 'connection refused' --dry-run
  wmretry demo --queue QUEUE --consume --broken     # in another terminal: the dependency is still down
  wmretry dead redrive QUEUE --canary 5 --canary-wait 5s
  wmretry demo --queue QUEUE --consume              # the dependency is back
  wmretry dead redrive QUEUE --dead-reason exhausted --canary 5 --canary-wait 5s --rate 20/s
  wmretry dead edit QUEUE ID --pretty
  wmretry dead export QUEUE -o letters.jsonl
  wmretry dead discard QUEUE --handler ship
  wmretry orphans list --prefix PREFIX
  wmretry demo --queue QUEUE --clean`))
	return err
}

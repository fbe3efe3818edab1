//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	patience       = 90 * time.Second // for each event
	every          = 100 * time.Millisecond
	untilOutage    = 10 * time.Second // so long the app bills without an outage, at least
	betweenOutages = 90 * time.Second
	cleanupTimeout = 30 * time.Second
)

// show is a run of the demo.
type show struct {
	opts     options
	out      io.Writer
	printing sync.Mutex
	began    time.Time
	app      *app
	journal  *journal
	traces   *traces
	watcher  *watcher // nil with -app

	stop       context.CancelFunc // ends the orders
	publishing sync.WaitGroup
	failed     chan error // why they have ended by themselves
}

func demo(ctx context.Context, opts options, out io.Writer, logger watermill.LoggerAdapter) (err error) {
	if opts.clean {
		if err := removeQueues(ctx, opts.uri, opts.queue); err != nil {
			return err
		}
	}
	version, err := checkBroker(ctx, opts.uri, opts.queue)
	if err != nil {
		return err
	}
	s := &show{opts: opts, out: out, began: time.Now(), journal: newJournal(), failed: make(chan error, 1), stop: func() {}}
	// What is open is closed in any case, so an interrupt does not cancel this.
	cleanup := context.WithoutCancel(ctx)
	closing := func(close func(context.Context) error) {
		limited, cancel := context.WithTimeout(cleanup, cleanupTimeout)
		defer cancel()
		err = errors.Join(err, close(limited))
	}

	if s.traces, err = newTraces(ctx, opts.spans); err != nil {
		return err
	}
	defer closing(s.traces.close)
	registry := prometheus.NewRegistry()
	if s.app, err = newApp(opts, registry, s.traces, s.journal, logger); err != nil {
		return err
	}
	defer closing(func(ctx context.Context) error {
		return errors.Join(s.app.close(), removeQueues(ctx, opts.uri, opts.queue))
	})
	metrics, stopMetrics, err := serveMetrics(opts.metrics, registry)
	if err != nil {
		return err
	}
	defer stopMetrics()
	if err := s.app.start(); err != nil {
		return err
	}
	defer s.stopPublishing()
	if !opts.appOnly {
		if s.watcher, err = startWatcher(ctx, opts, metrics); err != nil {
			return err
		}
		defer s.watcher.stop()
	}
	s.introduce(version, metrics)
	s.began = time.Now()
	if s.watcher != nil {
		defer s.watcher.follow(ctx, s.tell)()
	}
	if err := s.run(ctx); err != nil {
		return err
	}
	if opts.once {
		return nil
	}
	return s.goOn(ctx)
}

// introduce prints what there is to open.
func (s *show) introduce(version, metrics string) {
	s.line("the app    bills %q on %s", s.opts.queue, version)
	s.line("metrics    http://%s/metrics", metrics)
	if s.watcher != nil {
		s.line("Prometheus %s/alerts and", s.watcher.pages)
		s.line("           %s/graph?g0.expr=%s&g0.tab=0&g0.range_input=5m", s.watcher.pages, url.QueryEscape(retriesQuery))
		s.line("alerts     of %s, with \"for\" cut to %v at most", s.opts.rules, shortFor)
		s.line("Grafana    %s", s.watcher.grafana)
	}
	if endpoint := os.Getenv(otlpEndpoint); endpoint != "" {
		s.line("traces     go to %s", endpoint)
	} else {
		s.line("traces     that of order-%d is printed at the end; all go to a collector if %s is set", watched, otlpEndpoint)
	}
	s.line("")
}

// line prints a line without a time.
func (s *show) line(format string, args ...any) {
	s.printing.Lock()
	defer s.printing.Unlock()
	_, _ = fmt.Fprintf(s.out, format+"\n", args...)
}

// tell prints what happens now.
func (s *show) tell(format string, args ...any) {
	s.line("%5.1fs  %s", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// until waits for an event.
func (s *show) until(ctx context.Context, event string, happened func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for !happened() {
		select {
		case <-tick.C:
		case err := <-s.failed:
			return fmt.Errorf("while waiting until %s: %w", event, err)
		case <-ctx.Done():
			return fmt.Errorf("it did not happen that %s: %w", event, ctx.Err())
		}
	}
	return nil
}

// wait lets the app go on for a time.
func (s *show) wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case err := <-s.failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run is everything once: failures, an outage, a redrive, and what can be seen of them.
func (s *show) run(ctx context.Context) error {
	s.publish(ctx)
	s.tell("ten orders a second. Some fail and come back; order-%d and its like fail until their accounts are repaired", watched)
	if err := s.until(ctx, "an order recovered", func() bool { return s.journal.count(retry.Recovered) > 0 }); err != nil {
		return err
	}
	s.tell("an order has failed, has waited on a tier, and was billed")
	died := func() bool { return s.journal.watchedHas(retry.DeadLettered) }
	if err := s.until(ctx, "the watched order died", died); err != nil {
		return err
	}
	s.tell("order-%d has used up its %d retries: it is a dead letter", watched, len(schedule))
	if err := s.wait(ctx, untilOutage-min(untilOutage, time.Since(s.began))); err != nil {
		return err
	}
	if err := s.outage(ctx); err != nil {
		return err
	}
	most := 20 // that wait for a retry, or are new
	if s.opts.once {
		s.stopPublishing() // from now on the figures stay as they are
		most = 0
	}
	if err := s.until(ctx, "the orders of the outage were billed", func() bool { _, _, open := s.journal.state(); return open <= most }); err != nil {
		return err
	}
	billed, dead, _ := s.journal.state()
	s.tell("the orders of the outage are billed: billed=%d dead=%d", billed, dead)
	if err := s.redrive(ctx); err != nil {
		return err
	}
	if s.watcher != nil {
		if err := s.conclude(ctx); err != nil {
			return err
		}
	}
	if s.opts.once {
		return nil
	}
	s.tell("the app goes on, with an outage every %v. Ctrl-C ends everything", betweenOutages)
	return nil
}

// outage lets every order fail until the breaker has paused the handler, and ends it again.
func (s *show) outage(ctx context.Context) error {
	s.app.provider.away.Store(true)
	s.tell("outage: the payment provider answers 503 to every order")
	if err := s.until(ctx, "the breaker paused the handler", func() bool { return len(s.app.paused()) > 0 }); err != nil {
		return err
	}
	s.tell("the breaker has paused the handler (%s): orders wait in the work queue, in their order, and count no failure", strings.Join(s.app.paused(), ", "))
	if err := s.wait(ctx, s.opts.outage); err != nil {
		return err
	}
	s.app.provider.away.Store(false)
	s.tell("the outage is over: the next probe succeeds, then the handler goes on")
	if err := s.until(ctx, "the handler went on", func() bool { return len(s.app.paused()) == 0 }); err != nil {
		return err
	}
	s.tell("the handler goes on")
	return nil
}

// redrive brings the dead letters back whose cause is repaired. The declined cards stay dead letters.
func (s *show) redrive(ctx context.Context) error {
	s.app.provider.repaired.Store(true)
	store, err := deadletter.Open(deadletter.Config{URI: s.opts.uri, Management: s.opts.management}, nil)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	summary, err := store.Redrive(ctx, deadletter.QueueOf(s.opts.queue), letters.Redrive{
		Filter: letters.Filter{DeadReason: string(retry.DeadReasonExhausted)}, By: "the demo",
	})
	if err != nil {
		return err
	}
	s.journal.redrive(summary.Done)
	s.tell("the accounts are repaired, and the dead letters with the reason \"exhausted\" go back: %s", summary)
	billed := func() bool { return s.journal.watchedHas(retry.Processed, retry.Recovered) }
	if err := s.until(ctx, "the watched order was billed", billed); err != nil {
		return err
	}
	s.tell("order-%d is billed", watched)
	if !s.opts.once {
		return nil
	}
	return s.until(ctx, "the redriven orders were billed", func() bool { _, _, open := s.journal.state(); return open == 0 })
}

// goOn repeats the outage until the context ends.
func (s *show) goOn(ctx context.Context) error {
	for {
		if err := s.wait(ctx, betweenOutages); err != nil {
			return err
		}
		if err := s.outage(ctx); err != nil {
			return err
		}
	}
}

func (s *show) stopPublishing() {
	s.stop()
	s.publishing.Wait()
}

// publish publishes orders until the context ends, or until stopPublishing.
func (s *show) publish(ctx context.Context) {
	ctx, s.stop = context.WithCancel(ctx)
	s.publishing.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for number := 1; ; number++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			s.journal.send()
			id, err := s.app.publish(ctx, order{Number: number, Cents: 1999 + number})
			if err != nil && ctx.Err() == nil {
				s.failed <- err
				return
			}
			if number == watched {
				s.traces.kept.keep(id)
			}
		}
	})
}

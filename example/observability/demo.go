//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

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
	retriesQuery   = `sum by (outcome) (rate(watermill_retry_outcomes_total[10s]))`
)

// show is a run of the demo.
type show struct {
	opts     options
	out      io.Writer
	printing sync.Mutex
	began    time.Time
	app      *app
	journal  *journal
	kept     kept
	watcher  *watcher   // nil with -app
	failed   chan error // why the router or the orders have ended by themselves
}

func demo(ctx context.Context, opts options, out io.Writer) (err error) {
	if err := removeQueues(opts); err != nil { // of a run that was killed
		return err
	}
	s := &show{opts: opts, out: out, began: time.Now(), journal: newJournal(), failed: make(chan error, 2)}
	// What is open is closed in any case, so an interrupt does not cancel this.
	closing := func(close func() error) { err = errors.Join(err, close()) }
	traces, err := newTraces(ctx, &s.kept)
	if err != nil {
		return err
	}
	defer closing(func() error { return traces.Shutdown(context.WithoutCancel(ctx)) })
	registry := prometheus.NewRegistry()
	if s.app, err = newApp(opts, registry, traces, s.journal); err != nil {
		return err
	}
	defer closing(func() error { return errors.Join(s.app.rabbit.Close(), removeQueues(opts)) })
	metrics, stopMetrics, err := serveMetrics(opts.metrics, registry)
	if err != nil {
		return err
	}
	defer stopMetrics()

	// The router ends before the connection: a message in flight needs its publisher.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	var parts sync.WaitGroup
	defer parts.Wait()
	defer stop()
	parts.Go(func() {
		if err := s.app.router.Run(running); err != nil {
			s.failed <- err
		}
	})
	if err := s.until(ctx, "the handler consumed", s.app.router.IsRunning); err != nil {
		return err
	}
	if !opts.appOnly {
		if s.watcher, err = startWatcher(ctx, metrics); err != nil {
			return err
		}
		defer s.watcher.stop()
	}
	s.introduce(metrics)
	s.began = time.Now()
	if s.watcher != nil {
		parts.Go(func() { s.watcher.follow(running, s.tell) })
	}
	return s.run(ctx, running, &parts)
}

// introduce prints what there is to open.
func (s *show) introduce(metrics string) {
	s.line("metrics    http://%s/metrics", metrics)
	if s.watcher != nil {
		s.line("Prometheus %s/alerts and", s.watcher.url)
		s.line("           %s/graph?g0.expr=%s&g0.tab=0&g0.range_input=5m", s.watcher.url,
			url.QueryEscape(retriesQuery))
	}
	if endpoint := os.Getenv(otlpEndpoint); endpoint != "" {
		s.line("traces     go to %s", endpoint)
	} else {
		s.line("traces     that of order-%d is printed at the end; all go to a collector if %s is set", watched,
			otlpEndpoint)
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
	for !happened() {
		if err := s.wait(ctx, every); err != nil {
			return fmt.Errorf("it did not happen that %s: %w", event, err)
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

// watchedHas reports whether the watched order has had one of these outcomes.
func (s *show) watchedHas(outcomes ...retry.Outcome) func() bool {
	return func() bool {
		_, of := s.journal.counts()
		return slices.ContainsFunc(outcomes, func(o retry.Outcome) bool { return of[o] > 0 })
	}
}

// run is everything once: failures, an outage, a redrive, and what can be seen of them. Without -once outages follow
// until the context ends.
func (s *show) run(ctx, running context.Context, parts *sync.WaitGroup) error {
	publishing, stopPublishing := context.WithCancel(running)
	defer stopPublishing()
	parts.Go(func() { s.publish(publishing) })
	s.tell("ten orders a second. Some fail and come back; order-%d and its like fail until their accounts are "+
		"repaired", watched)
	recovered := func() bool {
		all, _ := s.journal.counts()
		return all[retry.Recovered] > 0
	}
	if err := s.until(ctx, "an order recovered", recovered); err != nil {
		return err
	}
	s.tell("an order has failed, has waited on a tier, and was billed")
	if err := s.until(ctx, "the watched order died", s.watchedHas(retry.DeadLettered)); err != nil {
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
		stopPublishing() // from now on the figures stay as they are
		most = 0
	}
	if err := s.until(ctx, "the orders of the outage were billed",
		func() bool { return s.journal.open() <= most }); err != nil {
		return err
	}
	s.tell("the orders of the outage are billed")
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
	for {
		if err := s.wait(ctx, betweenOutages); err != nil {
			return err
		}
		if err := s.outage(ctx); err != nil {
			return err
		}
	}
}

// outage lets every order fail until the breaker has paused the handler, and ends it again.
func (s *show) outage(ctx context.Context) error {
	s.app.provider.away.Store(true)
	s.tell("outage: the payment provider answers 503 to every order")
	if err := s.until(ctx, "the breaker paused the handler",
		func() bool { return len(s.app.paused()) > 0 }); err != nil {
		return err
	}
	s.tell("the breaker has paused the handler (%s): orders wait in the work queue, in their order, and count no "+
		"failure",
		strings.Join(s.app.paused(), ", "))
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
	s.journal.send(summary.Done)
	s.tell("the accounts are repaired, and the dead letters with the reason \"exhausted\" go back: %s", summary)
	if err := s.until(ctx, "the watched order was billed", s.watchedHas(retry.Processed, retry.Recovered)); err != nil {
		return err
	}
	s.tell("order-%d is billed", watched)
	if !s.opts.once {
		return nil
	}
	return s.until(ctx, "the redriven orders were billed", func() bool { return s.journal.open() == 0 })
}

// conclude prints what Prometheus has, and the trace. It returns an error if something of it is missing.
func (s *show) conclude(ctx context.Context) error {
	var have map[string]float64
	equal := func() bool { // with -once: no orders come any more
		want, _ := s.journal.counts()
		have, _ = s.watcher.counts(ctx, `sum by (outcome) (watermill_retry_outcomes_total)`, "outcome")
		outcomes := []retry.Outcome{
			retry.Processed, retry.Recovered, retry.Retried, retry.DeadLettered,
		}
		return !slices.ContainsFunc(outcomes, func(o retry.Outcome) bool {
			n := have[string(o)]
			return n == 0 || s.opts.once && n != float64(want[o])
		})
	}
	if err := s.until(ctx, "Prometheus had all outcomes", equal); err != nil {
		return fmt.Errorf("%w: it has %v", err, have)
	}
	s.line("\noutcomes, in Prometheus:  %v", have)
	var fired map[string]float64
	alerted := func() bool {
		const query = `count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[1h]))`
		fired, _ = s.watcher.counts(ctx, query, "alertname")
		return len(fired) > 0
	}
	if err := s.until(ctx, "an alert fired", alerted); err != nil {
		return err
	}
	s.line("alerts that have fired:   %s", strings.Join(slices.Sorted(maps.Keys(fired)), " "))
	err := s.until(ctx, "the trace was complete", func() bool { return printTrace(io.Discard, s.kept.all()) })
	s.line("\nThe trace of order-%d:", watched)
	printTrace(s.out, s.kept.all())
	return err
}

// publish publishes orders until the context ends.
func (s *show) publish(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for number := 1; ; number++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.journal.send(1)
		id, err := s.app.publish(context.Background(), order{Number: number, Cents: 1999 + number})
		if err != nil {
			s.failed <- err
			return
		}
		if number == watched {
			s.kept.keep(id)
		}
	}
}

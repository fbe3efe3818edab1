package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backends/conformance/process"
	"github.com/tieredretry/watermill-retry/backends/conformance/pubsub"
	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
	"github.com/tieredretry/watermill-retry/backends/conformance/servers"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/tools/child"
)

// counts are those of a run.
type counts struct {
	backend                                           string
	messages, kills, brokerRestarts, databaseRestarts int
	redriven                                          int
	duplicates                                        int64
	effectsMissing, effectsTwice                      int
	producedMissing, producedChanged                  int
}

func (c counts) String() string {
	line := fmt.Sprintf("inbox backend=%q messages=%d kills=%d broker_restarts=%d database_restarts=%d redriven=%d "+
		"duplicates=%d effects_missing=%d effects_twice=%d produced_missing=%d produced_changed=%d", c.backend,
		c.messages, c.kills, c.brokerRestarts, c.databaseRestarts, c.redriven, c.duplicates, c.effectsMissing,
		c.effectsTwice, c.producedMissing, c.producedChanged)
	if c.brokerRestarts == 0 {
		line += "\nNO RESTART OF THE BROKER: set BROKER_KILL and BROKER_START to the commands that kill and start it"
	}
	return line
}

// run is one run on one backend.
type run struct {
	messages, kills int

	worker
	counts
	broker   *servers.Server
	postgres *servers.Server
	db       *sql.DB
	backend  pubsub.Backend
	own      retry.Connection // publishes the orders, and gets the invoices
	router   *message.Router
	repeats  atomic.Int64
	children [2]*child.Child

	mu       sync.Mutex
	invoices map[string]map[string]bool // the UUIDs of the invoices of an order
}

// stalled is how long a run may go on without an order that is done.
const stalled = 90 * time.Second

// measure makes a run with so many messages, in which processes are killed so often.
func measure(ctx context.Context, backend string, n node, messages, kills int) (c counts, err error) {
	r := &run{messages: messages, kills: kills, invoices: map[string]map[string]bool{}}
	r.counts = counts{backend: strings.TrimSpace(backend + " " + n.name), messages: messages}
	r.worker = worker{Backend: backend, Name: strings.ToLower(rand.Text()[:8])}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.open(ctx, n); err != nil {
		return r.counts, err
	}
	err = r.disturb(ctx)
	if err == nil {
		err = r.finish(ctx)
	}
	return r.counts, errors.Join(err, r.count())
}

func (r *run) open(ctx context.Context, n node) error {
	entry, err := registry.Find(r.Backend)
	if err != nil {
		return err
	}
	if r.postgres, err = servers.PostgreSQL(ctx); err != nil {
		return err
	}
	r.Database = r.postgres.URL
	if r.db, err = sql.Open("pgx", r.Database); err != nil {
		return err
	}
	if _, err := r.db.ExecContext(ctx, "CREATE TABLE effects (message text NOT NULL)"); err != nil {
		return err
	}
	if r.broker, err = n.server(ctx, entry); err != nil {
		return err
	}
	r.URL = r.broker.URL
	if err := r.loseNothing(ctx); err != nil {
		return err
	}
	if r.backend, err = pubsub.Open(r.Backend, r.URL, process.Logger()); err != nil {
		return err
	}
	if err := r.account(ctx); err != nil {
		return err
	}
	for i := range r.children {
		if r.children[i], err = r.start(); err != nil {
			return err
		}
	}
	return nil
}

// accounting is the app that gets the invoices.
func (r *run) accounting() pubsub.App {
	app := r.app()
	app.Group = "accounting" + r.Name
	return app
}

func (r *run) account(ctx context.Context) (err error) {
	if r.own, err = r.connect(ctx, r.accounting(), process.Logger()); err != nil {
		return err
	}
	closing := message.RouterConfig{CloseTimeout: 20 * time.Second}
	if r.router, err = message.NewRouter(closing, process.Logger()); err != nil {
		return err
	}
	r.own.AddConsumerHandler(r.router, "accounting", r.worker.invoices(), func(msg *message.Message) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		order := string(msg.Payload)
		if r.invoices[order] == nil {
			r.invoices[order] = map[string]bool{}
		}
		r.invoices[order][msg.UUID] = true
		return nil
	})
	_, err = process.Serve(context.WithoutCancel(ctx), r.router)
	return err
}

// start starts a worker, and waits until it has subscribed.
func (r *run) start() (*child.Child, error) {
	return child.StartReady("worker", r.worker, func(line string) {
		if line == duplicated {
			r.repeats.Add(1)
		}
	})
}

// disturb publishes the orders in parts, and kills a process at a random moment after each.
func (r *run) disturb(ctx context.Context) error {
	for round := range r.kills {
		for n := round * r.messages / r.kills; n < (round+1)*r.messages/r.kills; n++ {
			if err := r.publish(ctx, strconv.Itoa(n), 1+n%20/19); err != nil { // one of 20 twice
				return err
			}
		}
		switch round {
		case r.kills / 3:
			if err := r.restartBroker(ctx); err != nil {
				return err
			}
		case 2 * r.kills / 3:
			if err := r.postgres.Restart(ctx); err != nil {
				return err
			}
			r.databaseRestarts++
		}
		time.Sleep(mathrand.N(300 * time.Millisecond))
		victim := &r.children[mathrand.N(len(r.children))]
		(*victim).Kill()
		r.counts.kills++
		var err error
		if *victim, err = r.start(); err != nil {
			return err
		}
		if round%5 == 4 {
			r.redrive(ctx)
		}
	}
	return nil
}

// publish publishes an order until the broker has it.
func (r *run) publish(ctx context.Context, uuid string, times int) error {
	for ctx.Err() == nil {
		if err := r.own.Publisher().Publish(r.orders(), message.NewMessage(uuid, nil)); err != nil {
			time.Sleep(50 * time.Millisecond)
		} else if times--; times == 0 {
			return nil
		}
	}
	return ctx.Err()
}

// loseNothing makes the broker keep what it has answered when it is killed.
func (r *run) loseNothing(ctx context.Context) error {
	if r.Backend == "redis" {
		return servers.RedisWritesAtOnce(ctx, r.URL)
	}
	return nil
}

// restartBroker kills the broker and starts it again on its data.
func (r *run) restartBroker(ctx context.Context) error {
	if r.broker.Restart == nil {
		return nil
	}
	r.brokerRestarts++
	return errors.Join(r.broker.Restart(ctx), r.loseNothing(ctx))
}

// redrive redrives all dead letters. What stays, for example because the broker is away, is redriven later.
func (r *run) redrive(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, stalled)
	defer cancel()
	store, err := r.backend.Letters(r.app())
	if err != nil {
		return
	}
	summary, _ := store.Redrive(ctx, r.backend.DeadTopic(r.app(), r.orders()), letters.Redrive{})
	r.redriven += summary.Done
	_ = store.Close()
}

// finish waits until every order is done and nothing is left, and stops the workers.
func (r *run) finish(ctx context.Context) error {
	if err := r.await(ctx, func() bool {
		r.redrive(ctx)
		err := r.count()
		return (err == nil || err == errWrong) && r.effectsMissing == 0 && r.producedMissing == 0
	}); err != nil {
		return err
	}
	time.Sleep(lease) // what a killed process had is delivered again after this time, on some backends
	if err := r.await(ctx, func() bool {
		r.redrive(ctx)
		left, err := r.backend.Left(ctx, r.app(), []string{r.orders()})
		return err == nil && left == 0
	}); err != nil {
		return err
	}
	// all that was on the queue before has been delivered when this order is done, and the workers end it
	if err := r.publish(ctx, "last", 1); err != nil {
		return err
	}
	if err := r.await(ctx, func() bool {
		n := 0
		err := r.db.QueryRowContext(ctx, "SELECT count(*) FROM effects WHERE message = 'last'").Scan(&n)
		return err == nil && n > 0
	}); err != nil {
		return err
	}
	for i, worker := range r.children {
		if err := worker.Stop(); err != nil { // as an operator does
			return fmt.Errorf("a worker: %w", err)
		}
		r.children[i] = nil
	}
	return nil
}

// await waits for a condition. It fails where no effect is new for too long.
func (r *run) await(ctx context.Context, is func() bool) error {
	missing, since := -1, time.Now()
	for !is() {
		if now := r.effectsMissing + r.producedMissing; now != missing {
			missing, since = now, time.Now()
		}
		if time.Since(since) > stalled {
			return errors.New("the run does not go on")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
	return nil
}

// count counts the effects and the invoices.
func (r *run) count() error {
	r.counts.duplicates = r.repeats.Load()
	if r.db == nil {
		return errors.New("there is no database")
	}
	const query = "SELECT count(DISTINCT message), count(*) FROM effects WHERE message <> 'last'"
	var orders, effects int
	if err := r.db.QueryRow(query).Scan(&orders, &effects); err != nil {
		return err
	}
	r.effectsMissing, r.effectsTwice = r.counts.messages-orders, effects-orders
	r.mu.Lock()
	defer r.mu.Unlock()
	r.producedMissing, r.producedChanged = r.counts.messages-len(r.invoices), 0
	for _, uuids := range r.invoices {
		r.producedChanged += len(uuids) - 1
	}
	if r.effectsMissing != 0 || r.effectsTwice != 0 || r.producedMissing != 0 || r.producedChanged != 0 {
		return errWrong
	}
	return nil
}

var errWrong = errors.New("an effect or a produced message is missing, or is there twice")

func (r *run) close() (err error) {
	for _, c := range r.children {
		if c != nil {
			c.Kill()
		}
	}
	if r.own != nil {
		err = errors.Join(r.router.Close(), r.own.Close())
	}
	if cleaner, shared := r.backend.(pubsub.Cleaner); shared {
		err = errors.Join(err, cleaner.Clean(r.app(), []string{r.orders()}),
			cleaner.Clean(r.accounting(), []string{r.worker.invoices()}))
	}
	if r.db != nil {
		_ = r.db.Close()
	}
	for _, server := range []*servers.Server{r.broker, r.postgres} {
		if server != nil {
			server.Stop()
		}
	}
	return err
}

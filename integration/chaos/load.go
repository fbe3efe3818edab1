package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/integration/broker"
)

// Options are the same for all rows of a run.
type Options struct {
	Messages int
	Short    bool // shorter faults

	Keys, Each int // how many messages of how many keys the rows of an order have, in place of Messages
}

// Load is one running row: an app that consumes, a feed that publishes, and what a fault needs to disturb them.
type Load struct {
	Options
	row    *Row
	broker Broker
	config appConfig
	direct string // the address without the proxy
	user   string
	admin  *rabbithole.Client
	proxy  *broker.Network
	ledger *Ledger
	feed   *feed
	app    *app
	child  *consumerProcess
	orders *orders
	stuck  bool
	fail   context.CancelCauseFunc // ends the row
}

func namePrefix(broker string) string {
	return "chaos-" + strings.Map(func(r rune) rune {
		if r == '.' || r == '*' || r == '#' {
			return '_'
		}
		return r
	}, broker) + "-"
}

const everything = ".*"

// runHere runs a fault: load, fault, drain, ledger. The goroutines are those of this process.
func runHere(ctx context.Context, fault Fault, b Broker, o Options) Row {
	begin := time.Now()
	row := Row{Fault: fault.Name, Broker: b.Name, NotRun: fault.Missing(b)}
	if row.NotRun == "" {
		if err := runLoad(ctx, fault, &Load{Options: o, row: &row, broker: b, ledger: newLedger()}); err != nil {
			row.NotRun = strings.ReplaceAll(err.Error(), "\n", "; ")
		}
	}
	row.Took = time.Since(begin)
	return row
}

// runLoad fills in the row.
func runLoad(ctx context.Context, fault Fault, l *Load) (err error) {
	if l.broker.Ctl != "" { // a row with a late confirm takes three minutes without it: see forwardedAgain
		const expression = "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 15000)."
		if err := run(l.broker.Ctl, "eval", expression); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, l.end(context.WithoutCancel(ctx))) }()
	if err := l.prepare(fault); err != nil {
		return err
	}
	var w work = l
	if fault.Needs&needsOrder != 0 {
		l.orders = &orders{Load: l}
		w = l.orders
	}
	ctx, l.fail = context.WithCancelCause(ctx)
	defer l.fail(nil)
	before := goleak.IgnoreCurrent()
	if err := w.start(ctx, fault); err != nil {
		return err
	}
	var publishing sync.WaitGroup
	publishing.Go(func() { w.publish(ctx, fault) })
	sleep(ctx, l.long(time.Second, 500*time.Millisecond))
	err = fault.Inject(ctx, l)
	if fault.Name != none && !l.ledger.marked() {
		l.ledger.heal()
	}
	publishing.Wait()
	if err = errors.Join(err, context.Cause(ctx)); err != nil {
		return err
	}
	if err := w.finish(ctx); err != nil {
		return err
	}
	if l.proxy != nil {
		l.proxy.Stop()
	}
	l.row.Leaked = l.row.Leaked || leaked(before)
	return w.count(ctx)
}

// work is what a load consists of.
type work interface {
	start(context.Context, Fault) error
	publish(context.Context, Fault)
	finish(context.Context) error // publishes the rest, waits until all is settled, and ends
	count(context.Context) error
}

// prepare makes the user and the proxy of the app.
func (l *Load) prepare(fault Fault) error {
	var err error
	if l.admin, err = l.broker.management(); err != nil {
		return err
	}
	name := namePrefix(l.broker.Name) + strings.ToLower(rand.Text()[:6])
	l.user = name
	if err := l.password(name); err != nil {
		return err
	}
	if err := l.permit(everything); err != nil {
		return err
	}
	uri, err := url.Parse(l.broker.URL)
	if err != nil {
		return errors.New("the broker's URL is invalid")
	}
	uri.User = url.UserPassword(name, name)
	l.direct = uri.String()
	address := l.direct
	if fault.Needs&needsProxy != 0 {
		if l.proxy, address, err = broker.NewProxy(l.direct); err != nil {
			return err
		}
	}
	l.config = appConfig{URL: address, Name: name, Breaker: fault.Needs&needsBreaker != 0}
	if fault.Needs&needsConfirms != 0 {
		l.config.Consuming = l.proxy.Upstream
	}
	return nil
}

func (l *Load) start(_ context.Context, fault Fault) (err error) {
	if fault.Needs&needsChild != 0 {
		return l.startChild()
	}
	l.app, err = startApp(l.config, l.ledger)
	return err
}

// password sets the password of the app's user and creates the user if it does not exist.
func (l *Load) password(password string) error {
	_, err := l.admin.PutUser(l.user, rabbithole.UserSettings{Password: password})
	return err
}

// permit sets the permissions of the app's user.
func (l *Load) permit(pattern string) error {
	_, err := l.admin.UpdatePermissionsIn("/", l.user,
		rabbithole.Permissions{Configure: pattern, Write: pattern, Read: pattern})
	return err
}

// publish publishes the messages, some of them after the fault.
func (l *Load) publish(ctx context.Context, fault Fault) {
	l.feed = newFeed(ctx, l)
	l.feed.publish(ctx, 0, l.Messages*4/5, l.during(fault))
}

// during is about how long the fault lasts.
func (l *Load) during(fault Fault) time.Duration {
	return l.long(fault.Lasts+time.Second, (fault.Lasts+time.Second)/3)
}

// finish publishes the messages that come after the fault, waits until all are settled, and closes the app.
func (l *Load) finish(ctx context.Context) error {
	l.feed.publish(ctx, l.Messages*4/5, l.Messages, l.long(2*time.Second, time.Second))
	l.feed.close()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	l.stuck = l.settle(ctx, l.long(8*time.Minute, 5*time.Minute))
	var err error
	if l.app != nil {
		err = l.app.close()
		l.app = nil
	}
	if l.child != nil {
		err = l.child.Finish()
		l.row.Leaked = l.child.leaked
		l.child = nil
	}
	if err != nil {
		return fmt.Errorf("cannot close the app: %w", err)
	}
	return nil
}

// forwardedAgain is how long RabbitMQ waits for a confirm in at-least-once dead-lettering before it tries again
// (dead_letter_worker_publisher_confirm_timeout, 3 minutes). After a crash of the broker a message can be as late,
// and until then no client can read it.
const forwardedAgain = 200 * time.Second

// settle waits until every message is processed or dead-lettered, or no message has moved for a long time. After the
// deletion of a work queue, a tier may keep messages: what the broker has sent to a quorum queue that is deleted and
// declared again at that moment stays until the tier has another leader.
func (l *Load) settle(ctx context.Context, within time.Duration) (stuck bool) {
	deadline := time.Now().Add(within)
	longest := time.Duration(tiers[len(tiers)-1])
	var stockClosed bool
	for time.Now().Before(deadline) && ctx.Err() == nil {
		open, quietFor := l.ledger.open()
		if open == 0 && quietFor > 500*time.Millisecond {
			return false
		}
		if quietFor > forwardedAgain+longest {
			return l.ledger.deletions() == 0 || !l.empty(l.config.workQueues())
		}
		if l.ledger.deletions() > 0 && quietFor > cutOff && !stockClosed {
			stockClosed = l.closeStock() == nil
		}
		if l.ledger.deletions() > 0 && quietFor > 3*longest+listed && l.empty(l.config.waiting()) {
			return false // the open messages were destroyed or are lost
		}
		sleep(ctx, 100*time.Millisecond)
	}
	return true
}

// cutOff is how long no message has moved when the consumers of watermill-amqp's subscriber are taken as cut off:
// before RabbitMQ 4.0 the broker can lose what it delivers to a consumer whose queue is replaced, until the consumer
// reconnects. Connect prevents that.
const cutOff = 20 * time.Second

// closeStock closes the connections of watermill-amqp's subscriber. Those of Connect have names.
func (l *Load) closeStock() error {
	connections, err := l.admin.ListConnections()
	for _, c := range connections {
		if _, named := c.ClientProperties["connection_name"]; c.User == l.user && !named {
			_, failed := l.admin.CloseConnection(c.Name)
			err = errors.Join(err, failed)
		}
	}
	return err
}

// listed is how old the numbers of the management API can be.
const listed = 6 * time.Second

// empty reports whether queues are empty. Messages that the broker is dead-lettering count as well.
func (l *Load) empty(ours []string) bool {
	queues, err := l.admin.ListQueues()
	if err != nil {
		return false
	}
	return !slices.ContainsFunc(queues, func(q rabbithole.QueueInfo) bool {
		return q.Messages > 0 && slices.Contains(ours, q.Name)
	})
}

func gone(err error) bool {
	var fault *amqp091.Error
	return errors.As(err, &fault) && fault.Code == amqp091.NotFound
}

// declare declares the topology again after a fault has deleted parts of it. A message that has expired on a tier
// cannot be read there: it waits until the way back exists.
func (l *Load) declare() error {
	rabbit, err := config.NewBuilder(l.config.rabbit())
	if err != nil {
		return err
	}
	connection, err := amqp091.Dial(l.broker.URL)
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	return errors.Join(rabbit.Topology(l.config.queue(connected)).Declare(channel),
		rabbit.Topology(l.config.queue(stock)).Declare(channel))
}

// count reads the messages that are left in the queues, at least twice, so that messages on their way from a tier are
// found.
func (l *Load) count(ctx context.Context) error {
	if err := l.declare(); err != nil {
		return err
	}
	dead, waiting := map[string]int{}, map[string]int{}
	for pass := 0; ; pass++ {
		n := 0
		for _, queue := range append(l.config.waiting(), l.config.Name+".orphans", l.config.dead(connected),
			l.config.dead(stock)) {
			into := waiting
			if strings.HasSuffix(queue, ".dead") {
				into = dead
			}
			found, err := drain(ctx, l.broker, queue, into)
			if err != nil {
				return fmt.Errorf("cannot read queue %q: %w", queue, err)
			}
			n += found
		}
		if pass > 0 && n == 0 {
			break
		}
		sleep(ctx, l.long(time.Second, 400*time.Millisecond))
	}
	row, stuck := l.row, l.stuck
	row.Stuck = stuck
	missing := l.ledger.settle(row, l.config, dead, waiting)
	if len(missing) > 0 || stuck {
		fmt.Fprintf(os.Stderr, "fault=%s broker=%s stuck=%v lost: %d\n", row.Fault, row.Broker, stuck, len(missing))
		for _, id := range missing[:min(len(missing), 20)] {
			fmt.Fprintf(os.Stderr, "  %s last seen in %s at %s\n", id, l.ledger.last[id].queue,
				l.ledger.last[id].at.Format("15:04:05.000"))
		}
		for _, d := range l.ledger.deleted {
			fmt.Fprintf(os.Stderr, "  deleted %s at %s with %d\n", d.queue, d.end.Format("15:04:05.000"), d.count)
		}
	}
	return nil
}

// end removes everything that the row has made, also after an error.
func (l *Load) end(ctx context.Context) error {
	if l.admin == nil || l.user == "" {
		return nil
	}
	if l.app != nil {
		_ = l.app.close()
	}
	if l.child != nil {
		l.child.Kill()
	}
	if l.orders != nil {
		l.orders.end()
	}
	if l.proxy != nil {
		l.proxy.Stop()
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := l.broker.await(ctx); err != nil {
		return err
	}
	for { // the management API can answer with an error shortly after a restart of the broker
		err := clean(l.admin, l.user)
		if err == nil || !sleep(ctx, 500*time.Millisecond) {
			return err
		}
	}
}

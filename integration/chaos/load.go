package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/tools/child"
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
	fault   Fault
	row     *Row
	broker  Broker
	config  appConfig
	direct  string // the address without the proxy
	user    string
	admin   *rabbithole.Client
	proxy   *broker.Network
	ledger  *ledger
	workers map[int]*child.Child    // the processes of the app, by number
	last    int                     // the number of the last one
	fail    context.CancelCauseFunc // ends the row
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

// Run disturbs the app with a fault. If a fault that disturbs the whole broker ends with an error, Run restores the
// broker. A row on a node that forwards nothing any more says nothing: it runs once more, on the node restarted.
func Run(ctx context.Context, fault Fault, b Broker, o Options) Row {
	row := runOnce(ctx, fault, b, o)
	if row.Faulty() != "" && fault.Alone() && !b.forwards() {
		fmt.Println("once more:", row, "The supervisor rabbit_fifo_dlx_sup of the node has ended.")
		if err := b.restart(); err != nil {
			row.NotRun = err.Error()
		} else {
			row = runOnce(ctx, fault, b, o)
		}
	}
	if row.NotRun != "" && fault.Alone() && fault.Missing(b) == "" {
		if err := b.Restore(); err != nil {
			row.NotRun += "; and the broker could not be restored: " + err.Error()
		}
	}
	return row
}

// The longest that a row may take: longer than each wait in it. A short row ends well before the time of its test.
const longest, longestShort = 20 * time.Minute, 9 * time.Minute

// toEnd is how long a row may take when it is over or is told to end: a command of the broker has three minutes.
const toEnd = 5 * time.Minute

// runOnce leaves a row that hangs in this process, and prints the goroutines.
func runOnce(ctx context.Context, fault Fault, b Broker, o Options) Row {
	begin := time.Now()
	row := Row{Fault: fault.Name, Broker: b.Name, NotRun: fault.Missing(b)}
	if row.NotRun == "" {
		l := &Load{Options: o, fault: fault, row: &Row{Fault: fault.Name, Broker: b.Name}, broker: b,
			workers: map[int]*child.Child{}}
		limit := l.long(longest, longestShort)
		limited, end := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the row has not ended after %v", limit))
		defer end()
		ended := make(chan error, 1)
		go func() { ended <- l.run(limited) }()
		if err, hangs := await(limited, ended, toEnd); hangs {
			row.NotRun = "it hangs: the goroutines are on stderr"
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2)
		} else if row = *l.row; err != nil {
			row.NotRun = strings.ReplaceAll(err.Error(), "\n", "; ")
		}
	}
	row.Took = time.Since(begin)
	return row
}

// await returns how a row has ended, or that it hangs: it has not ended so long after its context.
func await(ctx context.Context, ended <-chan error, patience time.Duration) (err error, hangs bool) {
	select {
	case err = <-ended:
		return err, false
	case <-ctx.Done():
	}
	select {
	case err = <-ended:
		return err, false
	case <-time.After(patience):
		return nil, true
	}
}

// run fills in the row: load, fault, drain, ledger.
func (l *Load) run(ctx context.Context) (err error) {
	if l.broker.Ctl != "" { // a row with a late confirm takes three minutes without it: see forwardedAgain
		const expression = "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 15000)."
		if err := run(l.broker.Ctl, "eval", expression); err != nil {
			return err
		}
	}
	limited := ctx
	defer func() { err = errors.Join(err, l.end(limited)) }()
	if err := l.prepare(); err != nil {
		return err
	}
	ctx, l.fail = context.WithCancelCause(ctx)
	defer l.fail(nil)
	for range l.processes() {
		if err := l.startWorker(); err != nil {
			return err
		}
	}
	most := l.total() * 4 / 5 // the others come after the fault
	var publishing sync.WaitGroup
	publishing.Go(func() { l.feed(ctx, 0, most, l.long(l.fault.Lasts+time.Second, (l.fault.Lasts+time.Second)/3)) })
	sleep(ctx, l.long(time.Second, 500*time.Millisecond))
	err = l.fault.Inject(ctx, l)
	if l.fault.Name != none && !l.ledger.marked() {
		l.ledger.heal()
	}
	publishing.Wait()
	if err = errors.Join(err, context.Cause(ctx)); err != nil {
		return err
	}
	l.feed(ctx, most, l.total(), l.long(2*time.Second, time.Second))
	l.row.Stuck = l.settle(ctx, l.long(8*time.Minute, 5*time.Minute))
	if l.config.Ordered {
		l.row.Stuck = l.row.Stuck || !within(ctx, 40*time.Second, func() bool { return l.empty(l.config.waiting()) })
	}
	for _, id := range l.ids() {
		err = errors.Join(err, l.terminate(id))
	}
	if err = errors.Join(err, context.Cause(ctx)); err != nil {
		return err
	}
	return l.count(ctx)
}

// prepare makes the ledger, the user and the proxy of the app.
func (l *Load) prepare() error {
	isOrder := l.fault.Needs&needsOrder != 0
	var err error
	if l.ledger, err = newLedger(l.Options, isOrder); err != nil {
		return err
	}
	if l.admin, err = l.broker.management(); err != nil {
		return err
	}
	name := namePrefix(l.broker.Name) + strings.ToLower(rand.Text()[:6])
	l.user = name
	if err := errors.Join(l.password(name), l.permit(everything)); err != nil {
		return err
	}
	uri, err := url.Parse(l.broker.URL)
	if err != nil {
		return errors.New("the broker's URL is invalid")
	}
	uri.User = url.UserPassword(name, name)
	l.direct = uri.String()
	l.config = appConfig{URL: l.direct, Name: name, Breaker: l.fault.Needs&needsBreaker != 0, Ordered: isOrder}
	if l.fault.Needs&needsProxy != 0 {
		if l.proxy, l.config.URL, err = broker.NewProxy(l.direct); err != nil {
			return err
		}
	}
	if l.fault.Needs&needsConfirms != 0 {
		l.config.Consuming = l.proxy.Upstream
	}
	return nil
}

// processes is how many processes the app has.
func (l *Load) processes() int {
	if l.config.Ordered {
		return 3
	}
	return 1
}

// startWorker starts a process of the app. With an order, only the network of the first one is disturbed.
func (l *Load) startWorker() (err error) {
	l.last++
	task := workerTask{App: l.config, Ledger: l.ledger.listener.Addr().String(), Number: l.last}
	if l.config.Ordered && l.last > 1 && !l.fault.Clustered() {
		task.App.URL = l.direct
	}
	if l.fault.Needs&needsTimeout != 0 {
		task.ConsumerTimeout = consumerTimeout
	}
	worker, err := child.StartReady("worker", task, func(string) {})
	if err == nil {
		l.workers[l.last] = worker
	}
	return err
}

// ids returns the numbers of the processes, oldest first.
func (l *Load) ids() []int { return slices.Sorted(maps.Keys(l.workers)) }

func (l *Load) take(id int) *child.Child {
	worker := l.workers[id]
	delete(l.workers, id)
	return worker
}

// terminate ends a process as a deployment does.
func (l *Load) terminate(id int) error {
	if err := l.take(id).Stop(); err != nil {
		return fmt.Errorf("a process that was told to end: %w", err)
	}
	return nil
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

func (l *Load) workQueues() (all []string) {
	for _, which := range l.config.workQueues() {
		all = append(all, l.config.queue(which))
	}
	return all
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
			return l.ledger.deletions() == 0 || !l.empty(l.workQueues())
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
	for _, queue := range l.workQueues() {
		err = errors.Join(err, rabbit.Topology(queue).Declare(channel))
	}
	return err
}

// count reads the messages that are left in the queues, at least twice, so that messages on their way from a tier are
// found. With an order, nothing but dead letters may be left.
func (l *Load) count(ctx context.Context) error {
	var left []string
	if !l.config.Ordered {
		if err := l.declare(); err != nil {
			return err
		}
		left = append(l.config.waiting(), l.config.Name+".orphans")
	}
	for _, which := range l.config.workQueues() {
		left = append(left, l.config.dead(which))
	}
	dead, waiting := map[string]int{}, map[string]int{}
	for pass, n := 0, 1; pass < 2 || n > 0; pass++ {
		n = 0
		for _, queue := range left {
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
		sleep(ctx, l.long(time.Second, 400*time.Millisecond))
	}
	for _, line := range l.ledger.settle(l.row, l.config, dead, waiting) {
		fmt.Fprintf(os.Stderr, "fault=%s broker=%s stuck=%v %s\n", l.row.Fault, l.row.Broker, l.row.Stuck, line)
	}
	return nil
}

// end removes everything that the row has made, also after an error.
func (l *Load) end(ctx context.Context) error {
	if l.admin == nil || l.user == "" {
		return nil
	}
	for _, worker := range l.workers {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			worker.Quit() // its goroutines say why the row has not ended
		} else {
			worker.Kill()
		}
	}
	l.ledger.close()
	if l.proxy != nil {
		l.proxy.Stop()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
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

package middleware

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
)

// An Observer makes visible what a Connection does: package observe, a module of its own, has one for Prometheus and one for
// OpenTelemetry. Connection.Observe attaches it. One Observer may be attached to several Connections.
type Observer interface {
	// Attach is called once for each Connection. The Hooks are called from then on. Where it returns an error, the error is logged, and
	// the Connection goes on as without the Observer.
	Attach(Observed) (Hooks, error)
}

// Observed is a Connection that is observed.
type Observed struct {
	System  string        // the backend, as OpenTelemetry names it (messaging.system): "rabbitmq"; for others the Go type of their publisher
	Health  func() Health // as Connection.Health. It does not wait
	Waiting Waiter        // nil: the backend does not show what waits
	Logger  watermill.LoggerAdapter
	Closed  <-chan struct{} // closed when the Connection closes
}

// A Waiter returns what waits in the queues of a Connection. It asks the backend, so it can take seconds: the end of ctx ends it.
type Waiter func(ctx context.Context) ([]Waiting, error)

// WaitingKind is what a queue is for.
type WaitingKind string

// The kinds of queues with messages that wait.
const (
	WaitingTier    WaitingKind = "tier"    // messages that wait for their delay
	WaitingInbox   WaitingKind = "inbox"   // messages between the tiers of a group and the work queue
	WaitingWork    WaitingKind = "work"    // a work queue
	WaitingDead    WaitingKind = "dead"    // dead letters
	WaitingOrphans WaitingKind = "orphans" // messages whose work queue was gone when their delay was over
)

// Waiting is a queue, or a topic, with messages that wait.
type Waiting struct {
	Kind     WaitingKind
	Queue    string
	Tier     backoff.Tier // of a tier
	Messages int
	NextDue  time.Time // when the first message of a tier is due at the latest; zero: not known, or there is none
}

// Hooks are what an Observer gets. Each may be nil. They are called on the path of each message, by many goroutines at the same time:
// they must not block. A panic is logged, once for each hook, and changes nothing for the message. After runtime.Goexit,
// as FailNow of a test calls it, the message is nacked, unless its copy is published.
type Hooks struct {
	// Begin is called before a handler is called. Where it returns a context, which must be derived from Arrival.Context, the message
	// has it while its handler runs, and the Event has it. An Event whose outcome is not Held follows, however the handler ends.
	Begin func(Arrival) context.Context
	// Event is called for each outcome, as TieredRetryConfig.Observe is.
	Event func(Event)
	// Produced is called with the messages that a handler has produced, before they are published. It may change their metadata.
	Produced func(ctx context.Context, produced []*message.Message)
	// Traceparent returns what the failure record is to keep of the attempt that has failed: see TraceparentKey.
	Traceparent func(ctx context.Context) string
	// LogFields returns fields for the log lines about a message.
	LogFields func(ctx context.Context) watermill.LogFields
	// Published is called for the result of each call of a publisher of the Connection, once for each kind of result.
	Published func(Published)
}

// Arrival is a message whose handler is about to be called.
type Arrival struct {
	Context context.Context
	Topic   string // as in Event
	Handler string
	Message *message.Message // only Begin may read it, and must not change it

	Record   Record        // zero at a first try
	Tier     backoff.Tier  // on which the message waited first; of a lane its tier; 0: it comes from no tier
	Lateness time.Duration // how long ago it was due, by the clocks of two hosts; 0: it comes from no tier
}

// PublishResult is what became of a message that was published.
type PublishResult string

// The results. A backend that is not RabbitMQ only has PublishConfirmed and PublishFailed.
const (
	PublishConfirmed   PublishResult = "confirmed"   // the publisher returned nil: on RabbitMQ, routed and confirmed
	PublishReturned    PublishResult = "returned"    // no queue is bound
	PublishNacked      PublishResult = "nacked"      // the broker refused it, for example because a tier is full
	PublishRefused     PublishResult = "refused"     // the publisher refused it: it is too large, or cannot be marshaled
	PublishUnconfirmed PublishResult = "unconfirmed" // no confirm came in time: it may have arrived
	PublishFailed      PublishResult = "failed"      // it was not sent: there is no connection, or it is blocked or closed
)

// PublishResults returns all results.
func PublishResults() []PublishResult {
	return []PublishResult{PublishConfirmed, PublishReturned, PublishNacked, PublishRefused, PublishUnconfirmed, PublishFailed}
}

// Published is the result of one call of a publisher.
type Published struct {
	Context  context.Context // of the first message
	Topic    string          // that the publisher got: of a copy on RabbitMQ its routing key
	Copy     bool            // copies of messages that failed; false: messages of the app
	Result   PublishResult
	Messages int           // how many messages have this result
	Took     time.Duration // the call, until the last confirm
}

// Observers are the observers of a Connection. The zero value is ready for use. It is safe for concurrent use. A Connection has its
// own; an app that wires the parts by itself makes one, calls Attach, and sets TieredRetryConfig.Observers.
type Observers struct {
	mu  sync.Mutex
	all atomic.Pointer[observers]
}

type observers struct {
	hooks  []Hooks
	logger watermill.LoggerAdapter
	failed *sync.Map // the names of hooks that have panicked
	begin  bool      // there is a hook Begin
}

// Attach attaches an observer. An error of it, or a panic, is logged, and nothing else happens.
func (o *Observers) Attach(observer Observer, observed Observed) {
	if observed.Logger == nil {
		observed.Logger = watermill.NopLogger{}
	}
	hooks, err := attach(observer, observed)
	if err != nil {
		observed.Logger.Error("Cannot observe the connection: it goes on without this observer", err, watermill.LogFields{"observer": fmt.Sprintf("%T", observer)})
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	next := &observers{logger: observed.Logger, failed: &sync.Map{}}
	if before := o.all.Load(); before != nil {
		next.hooks = append(next.hooks, before.hooks...)
		next.failed = before.failed
	}
	next.hooks = append(next.hooks, hooks)
	for _, h := range next.hooks {
		next.begin = next.begin || h.Begin != nil
	}
	o.all.Store(next)
}

func attach(observer Observer, observed Observed) (hooks Hooks, err error) {
	if observer == nil {
		return Hooks{}, fmt.Errorf("the observer is nil: give that of package observe")
	}
	if panicked := call(func() { hooks, err = observer.Attach(observed) }); panicked != nil {
		return Hooks{}, panicked
	}
	return hooks, err
}

// Published reports the result of a publisher.
func (o *Observers) Published(p Published) {
	all := o.load()
	if all == nil {
		return
	}
	for i := range all.hooks {
		if hook := all.hooks[i].Published; hook != nil {
			all.call("Published", func() { hook(p) })
		}
	}
}

// Observes reports whether an observer is attached.
func (o *Observers) Observes() bool { return o.load() != nil }

func (o *Observers) load() *observers {
	if o == nil {
		return nil
	}
	return o.all.Load()
}

// call calls a hook, and logs its panic.
func (o *observers) call(hook string, f func()) {
	panicked := call(f)
	if panicked == nil {
		return
	}
	if _, before := o.failed.LoadOrStore(hook, true); !before {
		o.logger.Error("The hook "+hook+" of an observer panicked. This is logged once", panicked, nil)
	}
}

// arrived returns the context of a message for its handler. It is nil where no hook has changed it.
func (o *observers) arrived(a Arrival) (derived context.Context) {
	for i := range o.hooks {
		if hook := o.hooks[i].Begin; hook != nil {
			o.call("Begin", func() {
				if ctx := hook(a); ctx != nil {
					a.Context, derived = ctx, ctx
				}
			})
		}
	}
	return derived
}

func (o *observers) event(e *Event) {
	for i := range o.hooks {
		if hook := o.hooks[i].Event; hook != nil {
			o.call("Event", func() { hook(*e) })
		}
	}
}

func (o *observers) produced(ctx context.Context, produced []*message.Message) {
	for i := range o.hooks {
		if hook := o.hooks[i].Produced; hook != nil {
			o.call("Produced", func() { hook(ctx, produced) })
		}
	}
}

// traceparent is that of the first observer that has one.
func (o *observers) traceparent(ctx context.Context) (text string) {
	for i := range o.hooks {
		if hook := o.hooks[i].Traceparent; hook != nil && text == "" {
			o.call("Traceparent", func() { text = hook(ctx) })
		}
	}
	return text
}

func (o *observers) logFields(ctx context.Context, fields watermill.LogFields) {
	for i := range o.hooks {
		if hook := o.hooks[i].LogFields; hook != nil {
			o.call("LogFields", func() { maps.Copy(fields, hook(ctx)) })
		}
	}
}

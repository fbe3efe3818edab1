package backend

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

// Observer is a retry.Observer that sees more than outcomes, as those of package observe do. The methods but Attach are
// called as Event is.
type Observer interface {
	retry.Observer
	// Attach is called once for each Connection, before the other methods. It returns the Observer of this Connection,
	// or nil for the one that was attached. An error is logged, and the Connection goes on as without the Observer.
	Attach(Observed) (Observer, error)
	// Begin is called before a handler is called. Where it returns a context, which must be derived from
	// Event.Context, the message has it while its handler runs, and the Event with the outcome has it. One whose outcome
	// is not Held follows, however the handler ends.
	Begin(retry.Event) context.Context
	// Produced is called with the messages that a handler has produced, before they are published. It may change their
	// metadata.
	Produced(ctx context.Context, produced []*message.Message)
	// Traceparent returns what the failure record is to keep of the attempt that has failed: see Record.Traceparent.
	Traceparent(ctx context.Context) string
	// LogFields returns fields for the log lines about a message.
	LogFields(ctx context.Context) watermill.LogFields
	// Published is called for the result of each call of a publisher of the Connection, once for each kind of result.
	Published(Published)
}

// NopObserver does nothing. An Observer that embeds it has only the methods that it needs.
type NopObserver struct{}

func (NopObserver) Attach(Observed) (Observer, error)             { return nil, nil }
func (NopObserver) Begin(retry.Event) context.Context             { return nil }
func (NopObserver) Event(retry.Event)                             {}
func (NopObserver) Produced(context.Context, []*message.Message)  {}
func (NopObserver) Traceparent(context.Context) string            { return "" }
func (NopObserver) LogFields(context.Context) watermill.LogFields { return nil }
func (NopObserver) Published(Published)                           {}

// outcomes is the Observer of an app's own retry.Observer.
type outcomes struct {
	NopObserver
	own retry.Observer
}

func (o outcomes) Event(e retry.Event) { o.own.Event(e) }

// Observed is a Connection that is observed.
type Observed struct {
	// the backend, as OpenTelemetry names it (messaging.system): "rabbitmq"; for others the Go type of their publisher
	System  string
	Health  func() retry.Health // as Connection.Health. It does not wait
	Waiting Waiter              // nil: the backend does not show what waits
	Logger  watermill.LoggerAdapter
	Closed  <-chan struct{} // closed when the Connection closes
}

// A Waiter returns what waits in the queues of a Connection. It asks the backend, so it can take seconds: the end of
// ctx ends it.
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
	Tier     backoff.Tier // the delay, where Kind is WaitingTier
	Messages int
	NextDue  time.Time // when the first message of a tier is due at the latest; zero: not known, or there is none
}

// PublishResult is what became of a message that was published.
type PublishResult string

// The results. A backend that is not RabbitMQ only has PublishConfirmed and PublishFailed.
const (
	PublishConfirmed PublishResult = "confirmed" // the publisher returned nil: on RabbitMQ, routed and confirmed
	PublishReturned  PublishResult = "returned"  // no queue is bound
	PublishNacked    PublishResult = "nacked"    // the broker refused it, for example because a tier is full
	// the publisher refused it: it is too large, or cannot be marshaled
	PublishRefused     PublishResult = "refused"
	PublishUnconfirmed PublishResult = "unconfirmed" // no confirm came in time: it may have arrived
	// it was not sent: there is no connection, or it is blocked or closed
	PublishFailed PublishResult = "failed"
)

// Published is the result of one call of a publisher.
type Published struct {
	Context  context.Context // the context of the first message
	Topic    string          // the topic that the publisher got: of a copy on RabbitMQ its routing key
	Copy     bool            // copies of messages that failed; false: messages of the app
	Result   PublishResult
	Messages int           // how many messages have this result
	Took     time.Duration // the call, until the last confirm
}

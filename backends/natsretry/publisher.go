package natsretry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tieredretry/watermill-retry/internal/unpublished"
)

const (
	scheduleHeader = "Nats-Schedule"
	targetHeader   = "Nats-Schedule-Target"

	scheduleAt = "@at " // before the due time

	// dueLayout has milliseconds. The server reads RFC 3339.
	dueLayout = "2006-01-02T15:04:05.000Z07:00"

	publishTimeout = 10 * time.Second

	codeTooLarge      = 10054 // the message exceeds the limit of the stream
	codeHeaderSize    = 10097 // its headers exceed 64 KiB
	codeWrongSequence = jetstream.JSErrCodeStreamWrongLastSequence
)

// appPublisher publishes to the app's topics. Its messages are those of watermill-nats's NATSMarshaler.
type appPublisher struct{ *server }

// Publish returns nil when the server has stored all messages. It makes the stream of a topic that has none.
func (p appPublisher) Publish(topic string, messages ...*message.Message) error {
	for i, msg := range messages {
		if err := p.publish(topic, msg); err != nil {
			return fmt.Errorf("message %d of %d: %w", i+1, len(messages), err)
		}
	}
	return nil
}

func (p appPublisher) publish(topic string, msg *message.Message) error {
	ctx, cancel := context.WithTimeout(msg.Context(), publishTimeout)
	defer cancel()
	_, err := p.js.PublishMsg(ctx, marshal(topic, msg), atOnce)
	if !isNoStream(err) {
		return err
	}
	if _, err := p.streamOf(ctx, topic); err != nil {
		return err
	}
	_, err = p.js.PublishMsg(ctx, marshal(topic, msg))
	return err
}

// Close leaves the connection open, which is the app's.
func (appPublisher) Close() error { return nil }

func (appPublisher) String() string { return "natsretry.Publisher" }

// atOnce reports a topic without a stream at once: nats.go asks three times by default.
var atOnce = jetstream.WithRetryAttempts(0)

func isNoStream(err error) bool {
	return errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders)
}

// copyPublisher publishes to the topics of the retries.
type copyPublisher struct {
	*server
	links *links
	slots *slots // nil: nothing waits
}

// Publish returns nil when the server has stored all messages. What has a delay and goes to a return topic waits on the
// server.
func (p copyPublisher) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		if err := p.publish(msg.Context(), topic, msg); err != nil {
			return classified(err)
		}
	}
	return nil
}

func (p copyPublisher) publish(ctx context.Context, topic string, msg *message.Message) error {
	wait, err := time.ParseDuration(msg.Metadata[delay.DelayedForKey])
	if err != nil || wait <= 0 || p.slots == nil || !p.names().IsReturn(topic) {
		return p.send(ctx, marshalCopy(topic, msg))
	}
	raw := marshalCopy("", msg)
	raw.Header[targetHeader] = []string{topic}
	for raw.Subject = p.slots.take(); ; raw.Subject = p.slots.fresh() {
		now, err := p.clock.now(ctx)
		if err != nil {
			return err
		}
		due := now.Add(wait + time.Millisecond - 1).Truncate(time.Millisecond)
		raw.Header[scheduleHeader] = []string{scheduleAt + due.UTC().Format(dueLayout)}
		err = p.send(ctx, raw, jetstream.WithExpectLastSequencePerSubject(0))
		p.slots.put(raw.Subject, wait)
		if code := codeOf(err); code != codeWrongSequence {
			return err
		}
	}
}

// send publishes to the stream of the retries. It makes that stream again where it is gone.
func (p copyPublisher) send(ctx context.Context, raw *nats.Msg, options ...jetstream.PublishOpt) error {
	err := p.confirmed(ctx, raw, options)
	if !isNoStream(err) {
		return err
	}
	if failed := p.makeStream(ctx); failed != nil {
		return failed
	}
	return p.confirmed(ctx, raw, options)
}

// confirmed waits for the server's answer while the connection lives. While there is none, nothing is sent.
func (p copyPublisher) confirmed(ctx context.Context, raw *nats.Msg, options []jetstream.PublishOpt) error {
	waiting, cancel := context.WithTimeout(ctx, publishTimeout)
	lost, err := p.links.live(waiting)
	cancel()
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, publishTimeout) // a server that is back can be slow to answer
	defer cancel()
	defer context.AfterFunc(lost, cancel)()
	_, err = p.js.PublishMsg(within, raw, options...)
	if lost.Err() != nil && errors.Is(err, context.Canceled) && ctx.Err() == nil {
		err = errLost
	}
	if errors.Is(err, errLost) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
		return &unpublished.Error{
			Kind: unpublished.Unconfirmed, Err: err, Lost: unpublished.Lost{Connection: lost.Done()},
		}
	}
	return err
}

// Close leaves the connection open, which is the app's.
func (p copyPublisher) Close() error {
	p.links.close()
	return nil
}

func (copyPublisher) String() string { return "natsretry.Publisher" }

// codeOf returns the code of the server's answer, or 0.
func codeOf(err error) jetstream.ErrorCode {
	var answered *jetstream.APIError
	if errors.As(err, &answered) {
		return answered.ErrorCode
	}
	return 0
}

// classified returns the error of a copy as the retry middleware reads it. Where the server has not answered another
// request, the copy has not been sent.
func classified(err error) error {
	var failed *unpublished.Error
	switch {
	case errors.As(err, &failed):
		return err
	case errors.Is(err, nats.ErrMaxPayload), codeOf(err) == codeTooLarge, codeOf(err) == codeHeaderSize:
		return &unpublished.Error{Kind: unpublished.TooLarge, Err: err}
	case errors.Is(err, nats.ErrConnectionClosed):
		return &unpublished.Error{Kind: unpublished.Closed, Err: fmt.Errorf("the connection of the app is closed: %w", err)}
	default:
		return &unpublished.Error{Kind: unpublished.Temporary, Err: err}
	}
}

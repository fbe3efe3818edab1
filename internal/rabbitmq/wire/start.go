package wire

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

const (
	// startTimeout is how long what an app begins with is tried again where the broker is at fault.
	startTimeout = 30 * time.Second
	// tryTimeout is how long one try may take. It declares all queues that a handler needs, with Order.Partitions up to
	// 258 quorum queues, and a busy node takes half a second for one.
	tryTimeout = 5 * time.Minute
)

var errUnfinished = fmt.Errorf("the broker has not finished this within %v", tryTimeout)

// AtStart declares or consumes for the first time. What is wrong is returned at once, with one exception: a fault of
// the broker, such as the internal error with which a busy node answers the declaration of a quorum queue, or with
// which RabbitMQ 3.10 closes a connection that consumes one while another instance declares it. The broker closes the
// connection then, so that other subscriptions lose it, too. That is tried again, after a pause that is random: all
// instances of an app may be starting. The context of a try that takes very long ends, with a cause that try returns:
// it is the last one. The first failure that is tried again is logged, and failed is called with each.
func AtStart(
	ctx context.Context, pause Backoff, logger watermill.LoggerAdapter, try func(context.Context) error,
	failed func(error),
) error {
	var last error // the broker's last refusal
	logged := false
	for began := time.Now(); ; {
		limited, cancel := context.WithTimeoutCause(ctx, tryTimeout, errUnfinished)
		err := try(limited)
		cancel()
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case errors.Is(err, errUnfinished):
			if last != nil {
				err = fmt.Errorf("%w: after %w%s", err, last, remedyOf(last))
			}
			return err
		case last != nil && errors.Is(err, publish.ErrNotConnected): // it reconnects
		case !isOfBroker(err):
			return err
		default:
			last = err
		}
		wait := pause.Next()
		if tried := time.Since(began); tried+wait > startTimeout {
			return fmt.Errorf("tried for %v: %w%s", max(tried.Round(time.Second), startTimeout), last, remedyOf(last))
		}
		if !logged {
			logged = true
			logger.Error("The broker cannot declare or consume now, trying again", last,
				watermill.LogFields{"for_at_most": startTimeout.String()})
		}
		failed(last)
		if err := pauses.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// isOfBroker reports whether the broker could not do what it was asked for, or did not in time, and may at another try.
func isOfBroker(err error) bool {
	var broker *amqp091.Error
	if errors.As(err, &broker) {
		switch broker.Code {
		case amqp091.InternalError, amqp091.ConnectionForced, amqp091.FrameError, amqp091.ChannelError:
			return true
		}
		return false
	}
	var timed interface{ Timeout() bool }
	return IsLost(err) || errors.As(err, &timed) && timed.Timeout()
}

// remedyOf returns what an operator can do about the fault of rabbitmq-server #16652. Measured in 2026-11 on one node,
// 3.10.8 and 4.3.6: two clients that declare and delete the same queue cause it within 16 and 24 s, one that deletes
// it every 100 ms after 22 and some 180 deletions, eight clients with a queue each within 2 s and never in 20 s. One
// client never does.
func remedyOf(err error) string {
	var broker *amqp091.Error
	if !errors.As(err, &broker) || broker.Code != amqp091.InternalError {
		return ""
	}
	return `: where the log of the node names rabbit_fifo_dlx_sup, restart the node ` +
		`(docs/limits.md#a-node-that-forwards-nothing-any-more)`
}

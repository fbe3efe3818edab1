package wire

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

const (
	// startTimeout is how long what an app begins with is tried again where the broker is at fault.
	startTimeout = 30 * time.Second
	// answerTimeout is how long one try may take. It declares all queues that a handler needs.
	answerTimeout = time.Minute
)

var errNoAnswer = fmt.Errorf("the broker has not answered for %v", answerTimeout)

// AtStart declares or consumes for the first time. What is wrong is returned at once, with one exception: a fault of
// the broker, such as the internal error with which a busy node answers the declaration of a quorum queue, or with
// which RabbitMQ 3.10 closes a connection that consumes one while another instance declares it. The broker closes the
// connection then, so that other subscriptions lose it, too. That is tried again, after a pause that is random: all
// instances of an app may be starting. The context of a try ends when the broker has not answered for very long. The
// first failure is logged, and failed is called with each.
func AtStart(
	ctx context.Context, pause Backoff, logger watermill.LoggerAdapter, try func(context.Context) error,
	failed func(error),
) error {
	var last error // of the broker
	for began := time.Now(); ; {
		err := within(ctx, try)
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case last != nil && errors.Is(err, publish.ErrNotConnected): // it reconnects
		case !isOfBroker(err):
			return err
		default:
			if last == nil {
				logger.Error("The broker cannot declare or consume now, trying again", err,
					watermill.LogFields{"for_at_most": startTimeout.String()})
			}
			last = err
		}
		wait := pause.Next()
		if tried := time.Since(began); tried+wait > startTimeout {
			return fmt.Errorf("tried for %v: %w%s", max(tried.Round(time.Second), startTimeout), last, remedyOf(last))
		}
		failed(last)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// within calls a try, whose context ends after answerTimeout.
func within(ctx context.Context, try func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	err := try(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return errNoAnswer
	}
	return err
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
	return err == errNoAnswer || IsLost(err) || errors.As(err, &timed) && timed.Timeout()
}

func remedyOf(err error) string {
	var broker *amqp091.Error
	if !errors.As(err, &broker) || broker.Code != amqp091.InternalError {
		return ""
	}
	return `: where the log of the node names rabbit_fifo_dlx_sup, restart the node ` +
		`(docs/limits.md#a-node-that-forwards-nothing-any-more)`
}

package subscriber

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

// startTimeout is how long what a subscription begins with is tried again where the broker is at fault.
const startTimeout = 30 * time.Second

// atStart declares or consumes for the first time. What is wrong is returned at once, with one exception: a fault of
// the broker, such as the internal error with which a busy node answers the declaration of a quorum queue, or with
// which RabbitMQ 3.10 closes a connection that consumes one while another instance declares it. The broker closes the
// connection then, so that other subscriptions lose it, too. That is tried again, after a pause that is random: all
// instances of an app may be starting.
func atStart(ctx context.Context, pause wire.Backoff, try func() error, failed func(error)) error {
	var last error // of the broker
	for began := time.Now(); ; {
		err := try()
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case last != nil && errors.Is(err, publish.ErrNotConnected): // it reconnects
		case !isOfBroker(err):
			return err
		default:
			last = err
		}
		wait := pause.Next()
		if time.Since(began)+wait > startTimeout {
			return fmt.Errorf("tried for %v: %w%s", startTimeout, last, remedyOf(last))
		}
		failed(last)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
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
	return wire.IsLost(err) || errors.As(err, &timed) && timed.Timeout()
}

func remedyOf(err error) string {
	var broker *amqp091.Error
	if !errors.As(err, &broker) || broker.Code != amqp091.InternalError {
		return ""
	}
	return `: where the log of the node names rabbit_fifo_dlx_sup, restart the node ` +
		`(docs/limits.md#a-node-that-forwards-nothing-any-more)`
}

// startFailed returns what atStart calls with each fault. It logs the first one.
func startFailed(logger watermill.LoggerAdapter, fail func(error)) func(error) {
	logged := false
	return func(err error) {
		fail(err)
		if !logged {
			logged = true
			logger.Error("The broker cannot declare or consume now, trying again", err,
				watermill.LogFields{"for_at_most": startTimeout.String()})
		}
	}
}

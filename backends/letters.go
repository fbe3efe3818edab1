package backends

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/relayletters"
)

// hold renews a lock several times in each lease, until the function that it returns is called. The context that it
// returns ends when the lock is lost. A server that does not answer has not taken it away before the end of the lease.
func hold(
	ctx context.Context, lease time.Duration, renew, release func(context.Context) error,
) (context.Context, func()) {
	pause := lease / 5
	held, lose := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for renewed := time.Now(); ; {
			select {
			case <-held.Done():
				return
			case <-tick.C:
			}
			began := time.Now()
			within, cancel := context.WithTimeout(held, pause)
			err := renew(within)
			cancel()
			if err == nil {
				renewed = began
			} else if !isTimeout(err) || time.Since(renewed) > lease-2*pause {
				lose(fmt.Errorf("the lock of the dead letters is lost: %w", err))
			}
		}
	}()
	return held, func() {
		lose(nil)
		<-ended
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), pause)
		defer cancel()
		_ = release(within) // the lease ends by itself
	}
}

func isTimeout(err error) bool {
	var timed interface{ Timeout() bool }
	return errors.As(err, &timed) && timed.Timeout()
}

func errBusy(topic string) error { return fmt.Errorf("topic %q: %w", topic, letters.ErrBusy) }

func errNoQueue(topic string) error { return fmt.Errorf("topic %q: %w", topic, letters.ErrNoQueue) }

func errUnreadable(topic, position string, err error) error {
	return fmt.Errorf("the message at %s of topic %q cannot be read, so this backend's letters end there: %w", position,
		topic, err)
}

// stored makes a letter of a message that was read.
func stored(position string, msg *message.Message) relayletters.Stored {
	return relayletters.Stored{Position: position, Message: msg}
}

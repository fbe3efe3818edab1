// Package ask sends the commands of wmretry order to the processes of a broker.
package ask

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
)

// All sends a request to all processes of an exchange, over a channel that is used for nothing else. It calls got with
// each answer, and returns after so many, and at the end of the wait. 0: it is not known how many there are.
func All(
	ctx context.Context, channel *amqp091.Channel, exchange string, r command.Request, processes int, wait time.Duration,
	got func(command.Answer),
) error {
	closed := channel.NotifyClose(make(chan *amqp091.Error, 1))
	returned := channel.NotifyReturn(make(chan amqp091.Return, 1))
	deliveries, err := channel.Consume(command.ReplyQueue, "", true, false, false, false, nil)
	if err != nil {
		return err
	}
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	id := strconv.FormatInt(time.Now().UnixNano(), 36)
	err = channel.PublishWithContext(ctx, exchange, "", true, false, amqp091.Publishing{
		ContentType: "application/json", ReplyTo: command.ReplyQueue, CorrelationId: id, Body: body,
		Expiration: strconv.FormatInt(max(1, wait.Milliseconds()), 10), // later it must not be carried out any more
	})
	if err != nil {
		return err
	}
	end := time.NewTimer(wait)
	defer end.Stop()
	for answers := 0; processes == 0 || answers < processes; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-end.C:
			return nil
		case <-returned:
			return command.ErrNoProcess
		case reason := <-closed:
			if reason != nil && reason.Code == amqp091.NotFound {
				return fmt.Errorf("%w: there is no exchange %q", command.ErrNoProcess, exchange)
			}
			return fmt.Errorf("the request could not be sent to exchange %q: %w", exchange, reason)
		case d, open := <-deliveries:
			if !open {
				deliveries = nil // closed follows
				continue
			}
			if d.CorrelationId != id {
				continue
			}
			var a command.Answer
			if err := json.Unmarshal(d.Body, &a); err != nil {
				a = command.Answer{Error: "its answer cannot be read"}
			}
			answers++
			got(a)
		}
	}
	return nil
}

package cli

import (
	"errors"
	"fmt"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/letters"
)

// explain returns the text of an error, with what to do.
func (e *env) explain(err error) string {
	text := err.Error()
	if text == "" {
		return ""
	}
	var refused *amqp091.Error
	switch {
	case errors.Is(err, letters.ErrBusy):
		text += "; wait until it has ended, or end it: only one redrive, discard or import at a time changes a queue"
	case errors.As(err, &refused) && refused.Code == amqp091.AccessRefused:
		text += fmt.Sprintf("; the broker refuses this to the user: %s. rabbitmqctl set_permissions gives it", safe(refused.Reason))
	}
	return text
}

package deadletter

import (
	"context"
	"errors"
	"fmt"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/letters"
)

// Drain sends the messages that wait on the queue of a tier back to their work queues at once, in place of at the end
// of their delay. They keep their failure record, so their retries go on. It looks only at the messages that are
// there when it begins; those that are due meanwhile come back by themselves, and are Unseen in the Summary. A
// message whose work queue does not exist stays. It uses the Filter, Limit, Rate, DryRun and Progress of the options,
// and refuses the others. See also Prune.
func (s *Store) Drain(ctx context.Context, tier string, options letters.Redrive) (letters.Summary, error) {
	group, _, isTier := s.prefix.TierOf(tier)
	if !isTier {
		return letters.Summary{}, fmt.Errorf("%q is not the queue of a tier: it must be <work queue or "+
			"group>.%s.<delay>, such as orders.%[2]s.10s", tier, string(s.prefix))
	}
	if err := options.Validate(); err != nil {
		return letters.Summary{}, err
	}
	if options.Canary != 0 || options.MaxRedead != 0 || options.To != "" || options.Note != "" ||
		options.Again {
		return letters.Summary{}, errors.New("Redrive.Canary, MaxRedead, To, Note and Again are for letters, and " +
			"messages on a tier are none: leave them out")
	}
	through, err := s.returnOf(ctx, group)
	if err != nil {
		return letters.Summary{}, err
	}
	return s.redrive(ctx, tier, through, options)
}

// returnOf returns the exchange through which messages come back from the tiers of a group, or of a work queue. No
// group has the name of a work queue.
func (s *Store) returnOf(ctx context.Context, group string) (string, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return "", err
	}
	defer end()
	connection, err := s.connect(ctx)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	for _, exchange := range []string{s.prefix.GroupReturnExchange(group), s.prefix.ReturnExchange()} {
		_, err = connection.Channel(func(channel *amqp091.Channel) error {
			return channel.ExchangeDeclarePassive(exchange, amqp091.ExchangeDirect, true, false, false, false, nil)
		})
		if !refusal.IsCode(err, amqp091.NotFound) {
			return exchange, err
		}
	}
	return "", fmt.Errorf("the exchange %q does not exist: nothing leads from a tier to its work queue; start the "+
		"app, which declares it: %w", s.prefix.ReturnExchange(), err)
}

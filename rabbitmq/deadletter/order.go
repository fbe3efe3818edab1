package deadletter

import (
	"context"
	"time"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/ask"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
)

// asker is for the page and the command wmretry.
type asker = command.Asker

// ask asks the processes with handlers that have Order.Partitions.
func (s *Store) ask(ctx context.Context, r command.Request, wait time.Duration) (command.Asked, error) {
	asked := command.Asked{Prefix: string(s.prefix)}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return asked, err
	}
	defer end()
	exchange := s.prefix.OrderControl()
	asked.Processes = s.countBound(ctx, exchange, wait)
	connection, err := s.connect(ctx)
	if err != nil {
		return asked, err
	}
	defer connection.Close()
	stop := context.AfterFunc(ctx, func() { _ = connection.Socket.Close() })
	defer stop()
	channel, err := connection.OpenChannel()
	if err == nil {
		err = ask.All(ctx, channel, exchange, r, asked.Processes, wait, func(a command.Answer) {
			asked.Answers = append(asked.Answers, a)
		})
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return asked, err
}

// countBound returns how many processes get a request, or 0 where the management API does not answer.
func (s *Store) countBound(ctx context.Context, exchange string, wait time.Duration) (count int) {
	client, err := s.managementClient()
	if err != nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	bindings, _ := client.Bindings(ctx)
	for b := range bindings {
		if b.Exchange == exchange {
			count++
		}
	}
	return count
}

package rabbitmq

import (
	"context"

	"github.com/tieredretry/watermill-retry/middleware"
)

// waiting returns what waits in the queues of the connection's handlers.
func (c *Connection) waiting(context.Context) ([]middleware.Waiting, error) { return nil, nil }

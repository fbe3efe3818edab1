package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Run runs a router until stop, which returns its error. It returns when all handlers consume.
func Run(router *message.Router) (stop func() error, err error) {
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
		return func() error { return errors.Join(router.Close(), <-ended) }, nil
	case err := <-ended:
		return nil, fmt.Errorf("the router has ended: %w", err)
	}
}

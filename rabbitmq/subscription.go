package rabbitmq

import (
	"errors"

	"github.com/tieredretry/watermill-retry/rabbitmq/internal/naming"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/refusal"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// declare declares the app's topology and the retry topology.
func (c *core) declare(s Subscription) error {
	t := topology.New(c.topology, s.Queue)
	if err := errors.Join(t.Validate(), c.prefix.ValidateExchange(s.Exchange)); err != nil {
		return err
	}
	if c.verifyOnly {
		inspected, err := c.inspector.Verify(s.Queue, t, s.Logger)
		if err != nil || inspected {
			return err
		}
		return t.Verify(s.Channel)
	}
	if s.Fault != nil {
		return s.Fault
	}
	arguments, err := c.inspector.Resolve(s.Queue, t, s.Logger)
	if err != nil {
		return err
	}
	if err := s.DeclareApp(arguments); err != nil {
		c.inspector.Forget(s.Queue.Name)
		return refusal.Explain("declare the app's own topology of queue", s.Queue.Name, err)
	}
	if err := t.DeclareRetry(s.Channel); err != nil {
		c.inspector.Forget(s.Queue.Name)
		return err
	}
	return nil
}

// declareDeadLetters declares the dead-letter queue that s.Queue names and what belongs to it, but not the work queue.
func (c *core) declareDeadLetters(s Subscription) error {
	t := c.topologyOf(naming.WorkQueueOf(s.Queue.Name))
	if err := t.Validate(); err != nil {
		return err
	}
	if c.verifyOnly {
		return t.Verify(s.Channel)
	}
	return t.DeclareDeadLetters(s.Channel)
}

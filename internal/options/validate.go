package options

import (
	"errors"
	"fmt"
	"time"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/retry"
)

const maxPrefetch = 1<<16 - 1 // RabbitMQ's basic.qos sends it in two bytes

// validate reports all faults of the options, joined, that are faults on every backend.
func validate(o retry.Options) error {
	var all []error
	if o.Policy != nil {
		all = append(all, faults.In("Policy", o.Policy.Validate()))
	}
	for _, field := range []struct {
		name  string
		value int
	}{{"Concurrency", o.Concurrency}, {"Prefetch", o.Prefetch}} {
		if field.value < 0 || field.value > maxPrefetch {
			all = append(all, fmt.Errorf("%s is %d: it must be between 0 (the default) and %d", field.name, field.value,
				maxPrefetch))
		}
	}
	if err := validateOrder(o.Order); err != nil {
		all = append(all, err)
	}
	if o.CloseTimeout < 0 {
		all = append(all, fmt.Errorf("CloseTimeout is %v: it must be 0 (the default) or more", o.CloseTimeout))
	}
	return errors.Join(all...)
}

func validateOrder(o retry.Order) error {
	var all []error
	if o.Key == nil && (o.Partitions != 0 || o.Block || o.ConsumerTimeout != 0) {
		all = append(all, errors.New("Order.Key is nil: it must return the key of a message"))
	}
	if o.Partitions < 0 || o.Partitions > 256 {
		all = append(all, fmt.Errorf("Order.Partitions is %d: it must be between 0 (one process) and 256",
			o.Partitions))
	}
	if o.Partitions == 0 && o.Block {
		all = append(all, errors.New("Order.Block is true, but Order.Partitions is 0: set the number of partitions"))
	}
	switch {
	case o.ConsumerTimeout == 0:
	case o.Partitions == 0:
		all = append(all, fmt.Errorf("Order.ConsumerTimeout is %v, but Order.Partitions is 0: set the number of "+
			"partitions", o.ConsumerTimeout))
	case o.ConsumerTimeout < time.Second:
		all = append(all, fmt.Errorf("Order.ConsumerTimeout is %v: it must be at least 1s, or 0 (30 minutes)",
			o.ConsumerTimeout))
	}
	return errors.Join(all...)
}

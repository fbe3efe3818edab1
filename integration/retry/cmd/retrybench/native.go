package main

import (
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// native is RabbitMQ's own delayed retry: a rejected message waits in its work queue. It keeps no failure record.
var native = side{
	name: "RabbitMQ's delayed retry", since: "4.3", declare: declareQueues,
	queues: func(work string) topology.Topology {
		return topology.Topology{
			WorkQueue: quorum(work, amqp091.Table{
				"x-delayed-retry-type": "failed", "x-delayed-retry-min": tier.Milliseconds(), "x-delayed-retry-max": tier.Milliseconds(),
				"x-delivery-limit": int64(tries - 1), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": work + deadSuffix,
			}),
			Queues: []topology.Queue{quorum(work+deadSuffix, nil)},
		}
	},
	consume: func(uri, work string, a *app) (func(), error) {
		h, err := newHand(uri, work, inFlight)
		if err != nil {
			return nil, err
		}
		h.group.Go(func() {
			for d := range h.deliveries {
				if a.handle(identity(d)) == nil {
					_ = d.Ack(false)
				} else {
					_ = d.Reject(true)
				}
			}
		})
		return h.close, nil
	},
}

//go:build amqpv3

package config

import "github.com/tieredretry/watermill-retry/config/amqp3"

type (
	Builder = amqp3.Builder
	Config  = amqp3.Config
)

var (
	Connect                    = amqp3.Connect
	DeadLetterSubscriberConfig = amqp3.DeadLetterSubscriberConfig
	NewBuilder                 = amqp3.NewBuilder
)

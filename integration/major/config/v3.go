//go:build amqpv3

package config

import "github.com/tieredretry/watermill-retry/configamqp3"

type (
	Builder       = configamqp3.Builder
	BuilderConfig = configamqp3.BuilderConfig
	Connection    = configamqp3.Connection
)

var (
	Connect    = configamqp3.Connect
	NewBuilder = configamqp3.NewBuilder
)

//go:build !amqpv3

// Package config is the library's builder for the major version that the tests are built for.
package config

import "github.com/tieredretry/watermill-retry/config"

type (
	Builder = config.Builder
	Config  = config.Config
)

var (
	Connect                    = config.Connect
	DeadLetterSubscriberConfig = config.DeadLetterSubscriberConfig
	NewBuilder                 = config.NewBuilder
)

//go:build !amqpv3

// Package config is the library's builder for the major that the tests are built for.
package config

import (
	"github.com/tieredretry/watermill-retry/config"
)

type (
	ArgumentConflictError = config.ArgumentConflictError
	Builder               = config.Builder
	BuilderConfig         = config.BuilderConfig
	Queue                 = config.Queue
	QueueType             = config.QueueType
	Topology              = config.Topology
	WorkQueueMode         = config.WorkQueueMode
)

const (
	Classic = config.Classic
	Leave   = config.Leave
	Protect = config.Protect
	Quorum  = config.Quorum
)

var (
	ErrTransientQueue    = config.ErrTransientQueue
	ErrUnprotectedQuorum = config.ErrUnprotectedQuorum
	NewBuilder           = config.NewBuilder
)

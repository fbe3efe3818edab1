//go:build amqpv3

// Package config is the library's builder for the major that the tests are built for.
package config

import (
	"github.com/tieredretry/watermill-retry/configv3"
)

type (
	ArgumentConflictError = configv3.ArgumentConflictError
	Builder               = configv3.Builder
	BuilderConfig         = configv3.BuilderConfig
	Queue                 = configv3.Queue
	QueueType             = configv3.QueueType
	Topology              = configv3.Topology
	WorkQueueMode         = configv3.WorkQueueMode
)

const (
	Classic = configv3.Classic
	Leave   = configv3.Leave
	Protect = configv3.Protect
	Quorum  = configv3.Quorum
)

var (
	ErrTransientQueue    = configv3.ErrTransientQueue
	ErrUnprotectedQuorum = configv3.ErrUnprotectedQuorum
	NewBuilder           = configv3.NewBuilder
)

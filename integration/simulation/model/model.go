// Package model has the names of the model of RabbitMQ that the faults of the simulation use.
package model

import "github.com/tieredretry/watermill-retry/internal/rabbitmq/model"

// The types and faults of the model.
type (
	Config = model.Config
	Event  = model.Event
	Fault  = model.Fault
	Policy = model.Policy
)

// The faults of a connection.
const (
	None   = model.None
	Cut    = model.Cut
	Reset  = model.Reset
	Silent = model.Silent
	Nack   = model.Nack
)

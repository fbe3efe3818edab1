package main

import (
	"context"
	"slices"
	"time"
)

// Fault is one disturbance.
type Fault struct {
	Name   string
	Needs  Need
	Lasts  time.Duration                      // about; messages are published during this time
	Inject func(context.Context, *Load) error // returns when the fault is over and undone
}

// Need is what a fault requires.
type Need int

const (
	needsCtl Need = 1 << iota
	needsKill
	needsCluster
	needsProxy    // always available
	needsConfirms // always available: a proxy that the first connection, which consumes, does not use
	needsBreaker  // always available
	needsAMQP10
	needsMinutes // always available, and not part of the short run
	needsOrder   // always available: processes that keep the order of keys
	needsTimeout // always available: their consumer timeout is consumerTimeout
	needsNode    // always available: see Broker.forwards
)

const none = "none"

// All returns the faults in the order in which they run.
func All() []Fault {
	return slices.Concat(
		[]Fault{{none, 0, 5 * time.Second, func(context.Context, *Load) error { return nil }}},
		brokerFaults, consumerFaults, serverFaults, deletions, networkFaults, limits, publishers,
		orderFaults,
	)
}

// Missing returns why the fault cannot run on the broker, or "" if it can.
func (f Fault) Missing(b Broker) string {
	switch {
	case f.Needs&needsCluster != 0 && (len(b.Survivors) == 0 || b.Kill == ""):
		return "needs a cluster"
	case f.Needs&needsCluster == 0 && len(b.Survivors) > 0:
		return "is for a single node"
	case f.Needs&needsKill != 0 && (b.Kill == "" || b.Start == ""):
		return "needs BROKER_KILL and BROKER_START"
	case f.Needs&needsCtl != 0 && b.Ctl == "":
		return "needs BROKER_CTL"
	}
	return f.LeftOut(b)
}

// LeftOut returns why no broker of this version can have the fault, or "" if it can.
func (f Fault) LeftOut(b Broker) string {
	if f.Needs&needsAMQP10 != 0 && !b.speaksAMQP10() {
		return "needs RabbitMQ 4.0 or later: below, no publisher of AMQP 1.0 can send such messages"
	}
	return ""
}

// Clustered reports whether the fault needs a cluster.
func (f Fault) Clustered() bool { return f.Needs&needsCluster != 0 }

// Alone reports whether the fault disturbs everything on its broker, so that nothing else may run there.
func (f Fault) Alone() bool { return f.Needs&(needsKill|needsCtl|needsNode) != 0 }

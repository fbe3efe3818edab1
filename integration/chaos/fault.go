// Package chaos hurts a running app, 16 handlers under load, and counts every message by its identity: published =
// processed + dead-lettered + still waiting, whatever happens. The faults are the rows of All; load and ledger are shared.
package chaos

import (
	"context"
	"slices"
	"time"
)

// Fault is one thing that goes wrong.
type Fault struct {
	Name   string
	Needs  Need
	Lasts  time.Duration                      // about; messages are published all the while
	Inject func(context.Context, *Load) error // returns when the fault is over, having undone it
}

// Need is what a fault cannot do without.
type Need int

const (
	needsCtl Need = 1 << iota
	needsKill
	needsCluster
	needsProxy // always to be had
	needsChild // always to be had
)

const none = "none"

// All are the faults, in the order in which they run.
func All() []Fault {
	return slices.Concat(
		[]Fault{{none, 0, 5 * time.Second, func(context.Context, *Load) error { return nil }}},
		brokerFaults, consumerFaults, serverFaults, deletions, networkFaults, limits,
	)
}

// Missing says why the fault cannot be had on the broker, "" where it can.
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
	return ""
}

// Clustered tells whether the fault needs a cluster.
func (f Fault) Clustered() bool { return f.Needs&needsCluster != 0 }

// Alone tells whether the fault hurts everything on its broker, so that nothing else may run there.
func (f Fault) Alone() bool { return f.Needs&(needsKill|needsCtl) != 0 }

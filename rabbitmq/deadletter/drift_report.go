package deadletter

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// ErrConflict is returned by Apply when an object exists with other arguments.
var ErrConflict = errors.New("the topology conflicts with existing objects")

// Kind is what a Difference is.
type Kind string

const (
	// Create is an object that is missing. Apply declares it.
	Create Kind = "create"
	// Conflict is an existing object with other arguments. RabbitMQ cannot change the arguments of an object: Advice
	// has what to do.
	Conflict Kind = "conflict"
	// Policy is a policy that makes a queue delete or drop messages, or shortens the delay of a tier.
	Policy Kind = "policy"
	// Note is something to know that is no drift, such as the tier of an earlier schedule.
	Note Kind = "note"
)

// Difference is one difference between what apps declare and what is on the broker.
type Difference struct {
	Kind     Kind   `json:"kind"`
	Object   string `json:"object"` // exchange, queue, binding, or broker
	Name     string `json:"name"`   // the name of the exchange or queue
	Argument string `json:"argument,omitzero"`
	Want     string `json:"want,omitzero"`   // the value asked for, "none" without one
	Have     string `json:"have,omitzero"`   // the value that is there, "none" without one
	Reason   string `json:"reason,omitzero"` // why it matters, or why it cannot be changed
	Advice   string `json:"advice,omitzero"` // what to do
}

// String returns the difference as one line.
func (d Difference) String() string {
	var text strings.Builder
	_, _ = fmt.Fprintf(&text, "%s %s", d.Object, d.Name)
	if d.Argument != "" {
		_, _ = fmt.Fprintf(&text, ": %s is %s", d.Argument, d.Have)
		if d.Want != "" {
			_, _ = fmt.Fprintf(&text, ", wanted is %s", d.Want)
		}
	}
	for _, more := range []string{d.Reason, d.Advice} {
		if more != "" {
			_, _ = fmt.Fprintf(&text, ": %s", more)
		}
	}
	return text.String()
}

// Report is what Compare has found.
type Report struct {
	Differences []Difference `json:"differences"`
}

// Drifted reports whether there is any difference besides notes.
func (r Report) Drifted() bool {
	return slices.ContainsFunc(r.Differences, func(d Difference) bool { return d.Kind != Note })
}

// Of returns the differences of a kind.
func (r Report) Of(kind Kind) []Difference {
	return slices.DeleteFunc(slices.Clone(r.Differences), func(d Difference) bool { return d.Kind != kind })
}

func (r *Report) add(d Difference) { r.Differences = append(r.Differences, d) }

// missing adds an object that is not there.
func (r *Report) missing(object, name string) {
	r.add(Difference{Kind: Create, Object: object, Name: name})
}

// conflict adds an argument that cannot be changed.
func (r *Report) conflict(object, name string, d *topology.ArgumentConflictError, advice string) {
	r.add(Difference{
		Kind: Conflict, Object: object, Name: name, Argument: d.Argument, Want: d.Want, Have: d.Have,
		Reason: "RabbitMQ cannot change the arguments of an existing object", Advice: advice,
	})
}

func (r *Report) sort() {
	kinds := []Kind{Conflict, Policy, Create, Note}
	slices.SortStableFunc(r.Differences, func(a, b Difference) int {
		return cmp.Compare(slices.Index(kinds, a.Kind), slices.Index(kinds, b.Kind))
	})
}

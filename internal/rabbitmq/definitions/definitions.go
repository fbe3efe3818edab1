// Package definitions has what the work queues of an app need on the broker, each object once.
package definitions

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// Definitions is everything that several work queues need. Its JSON has the form of RabbitMQ's definitions of one
// virtual host, which the management API imports with POST /api/definitions/<vhost>.
type Definitions struct {
	Exchanges []topology.Exchange
	Queues    []topology.Queue // the work queues, too
	Bindings  []topology.Binding
}

// Merge returns everything that topologies need. It returns an error if one of them is invalid, or if two of them need
// an object with the same name and different arguments: the broker would refuse the second one.
func Merge(topologies ...topology.Topology) (Definitions, error) {
	var all Definitions
	exchanges, queues, bindings := map[string]topology.Exchange{}, map[string]topology.Queue{}, map[topology.Binding]bool{}
	var faults []error
	fault := func(kind, name string, one, other amqp091.Table) {
		faults = append(faults, fmt.Errorf("%s %q is needed with different arguments: %s, and %s: configure the same "+
			"for all work queues that share it",
			kind, name, argumentsText(one), argumentsText(other)))
	}
	for _, t := range topologies {
		if err := t.Validate(); err != nil {
			faults = append(faults, err)
			continue
		}
		for _, e := range t.Exchanges {
			if had, found := exchanges[e.Name]; !found {
				exchanges[e.Name] = e
				all.Exchanges = append(all.Exchanges, e)
			} else if had.Kind != e.Kind || !sameArguments(had.Arguments, e.Arguments) {
				fault("exchange", e.Name, had.Arguments, e.Arguments)
			}
		}
		for _, q := range append([]topology.Queue{t.WorkQueue}, t.Queues...) {
			if had, found := queues[q.Name]; !found {
				queues[q.Name] = q
				all.Queues = append(all.Queues, q)
			} else if had.Durable != q.Durable || !sameArguments(had.Arguments, q.Arguments) {
				fault("queue", q.Name, had.Arguments, q.Arguments)
			}
		}
		for _, b := range t.Bindings {
			if !bindings[b] {
				bindings[b] = true
				all.Bindings = append(all.Bindings, b)
			}
		}
	}
	return all, errors.Join(faults...)
}

func sameArguments(a, b amqp091.Table) bool {
	return maps.EqualFunc(a, b, func(x, y any) bool { return reflect.DeepEqual(x, y) })
}

// MarshalJSON returns the definitions in RabbitMQ's form.
func (d Definitions) MarshalJSON() ([]byte, error) {
	type exchange struct {
		topology.Exchange
		AutoDelete bool `json:"auto_delete"`
		Internal   bool `json:"internal"`
	}
	type queue struct {
		topology.Queue
		AutoDelete bool `json:"auto_delete"`
	}
	type binding struct {
		topology.Binding
		DestinationType string        `json:"destination_type"`
		Arguments       amqp091.Table `json:"arguments"`
	}
	definitions := struct {
		Exchanges []exchange `json:"exchanges"`
		Queues    []queue    `json:"queues"`
		Bindings  []binding  `json:"bindings"`
	}{}
	for _, e := range d.Exchanges {
		e.Arguments = notNil(e.Arguments)
		definitions.Exchanges = append(definitions.Exchanges, exchange{Exchange: e})
	}
	for _, q := range d.Queues {
		q.Arguments = notNil(q.Arguments)
		definitions.Queues = append(definitions.Queues, queue{Queue: q})
	}
	for _, b := range d.Bindings {
		definitions.Bindings = append(definitions.Bindings,
			binding{Binding: b, DestinationType: "queue", Arguments: amqp091.Table{}})
	}
	return json.Marshal(definitions)
}

func notNil(table amqp091.Table) amqp091.Table {
	if table == nil {
		return amqp091.Table{}
	}
	return table
}

func argumentsText(arguments amqp091.Table) string {
	if len(arguments) == 0 {
		return "none"
	}
	words := make([]string, 0, len(arguments))
	for _, key := range slices.Sorted(maps.Keys(arguments)) {
		words = append(words, fmt.Sprintf("%s=%v", key, arguments[key]))
	}
	return strings.Join(words, " ")
}

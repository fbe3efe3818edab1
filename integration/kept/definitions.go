package kept

import (
	"fmt"
	"math"
	"slices"
	"strings"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Definitions are the exchanges, queues and bindings of a virtual host.
type Definitions struct {
	Exchanges []Exchange `json:"exchanges"`
	Queues    []Queue    `json:"queues"`
	Bindings  []Binding  `json:"bindings"`
}

// An Exchange is one that is durable.
type Exchange struct {
	Name      string `json:"name"`
	Kind      string `json:"kind"`
	Arguments table  `json:"arguments"`
}

// A Queue is one that is durable.
type Queue struct {
	Name      string `json:"name"`
	Arguments table  `json:"arguments"`
}

// A Binding leads from an exchange to a queue.
type Binding struct {
	Exchange string `json:"exchange"`
	Queue    string `json:"queue"`
	Key      string `json:"key"`
}

// declared returns what exists in a virtual host.
func declared(client *rabbithole.Client, vhost string) (d Definitions, err error) {
	all, err := client.ListVhostDefinitions(vhost)
	if err != nil {
		return d, err
	}
	for _, e := range *all.Exchanges {
		if !e.Durable || bool(e.AutoDelete) {
			return d, fmt.Errorf("the exchange %q is not durable", e.Name)
		}
		d.Exchanges = append(d.Exchanges, Exchange{e.Name, e.Type, arguments(e.Arguments)})
	}
	for _, q := range *all.Queues {
		if !q.Durable || bool(q.AutoDelete) {
			return d, fmt.Errorf("the queue %q is not durable", q.Name)
		}
		d.Queues = append(d.Queues, Queue{q.Name, arguments(q.Arguments)})
	}
	for _, b := range *all.Bindings {
		d.Bindings = append(d.Bindings, Binding{b.Source, b.Destination, b.RoutingKey})
	}
	slices.SortFunc(d.Exchanges, func(a, b Exchange) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(d.Queues, func(a, b Queue) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(d.Bindings, func(a, b Binding) int {
		return slices.Compare([]string{a.Exchange, a.Queue, a.Key}, []string{b.Exchange, b.Queue, b.Key})
	})
	return d, nil
}

// arguments returns those of a declaration.
func arguments(of map[string]any) table {
	all := table{}
	for name, argument := range of {
		if number, ok := argument.(float64); ok && number == math.Trunc(number) {
			argument = int64(number)
		}
		all[name] = argument
	}
	return all
}

// declare declares what is not there yet. The broker refuses what is there with other arguments.
func (d Definitions) declare(channel *amqp091.Channel) error {
	for _, e := range d.Exchanges {
		if err := channel.ExchangeDeclare(e.Name, e.Kind, true, false, false, false,
			amqp091.Table(e.Arguments)); err != nil {
			return err
		}
	}
	for _, q := range d.Queues {
		if _, err := channel.QueueDeclare(q.Name, true, false, false, false, amqp091.Table(q.Arguments)); err != nil {
			return err
		}
	}
	for _, b := range d.Bindings {
		if err := channel.QueueBind(b.Queue, b.Key, b.Exchange, false, nil); err != nil {
			return err
		}
	}
	return nil
}

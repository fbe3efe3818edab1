package kept

import (
	"math"
	"slices"
	"strings"
	"testing"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// definitions are the exchanges, queues and bindings of a virtual host. All are durable.
type definitions struct {
	Exchanges []exchange `json:"exchanges"`
	Queues    []queue    `json:"queues"`
	Bindings  []binding  `json:"bindings"`
}

type exchange struct {
	Name      string    `json:"name"`
	Kind      string    `json:"kind"`
	Arguments arguments `json:"arguments"`
}

type queue struct {
	Name      string    `json:"name"`
	Arguments arguments `json:"arguments"`
}

// A binding leads from an exchange to a queue.
type binding struct {
	Exchange string `json:"exchange"`
	Queue    string `json:"queue"`
	Key      string `json:"key"`
}

// arguments are those of a declaration, as JSON has them.
type arguments map[string]any

// declared returns what exists in a virtual host.
func declared(t *testing.T, client *rabbithole.Client, vhost string) (d definitions) {
	t.Helper()
	all, err := client.ListVhostDefinitions(vhost)
	require.NoError(t, err)
	for _, e := range *all.Exchanges {
		require.True(t, e.Durable && !bool(e.AutoDelete), e.Name)
		d.Exchanges = append(d.Exchanges, exchange{e.Name, e.Type, e.Arguments})
	}
	for _, q := range *all.Queues {
		require.True(t, q.Durable && !bool(q.AutoDelete), q.Name)
		d.Queues = append(d.Queues, queue{q.Name, q.Arguments})
	}
	for _, b := range *all.Bindings {
		d.Bindings = append(d.Bindings, binding{b.Source, b.Destination, b.RoutingKey})
	}
	slices.SortFunc(d.Exchanges, func(a, b exchange) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(d.Queues, func(a, b queue) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(d.Bindings, func(a, b binding) int {
		return slices.Compare([]string{a.Exchange, a.Queue, a.Key}, []string{b.Exchange, b.Queue, b.Key})
	})
	return d
}

// table has whole numbers as int64.
func (a arguments) table() amqp091.Table {
	table := amqp091.Table{}
	for name, argument := range a {
		if number, ok := argument.(float64); ok && number == math.Trunc(number) {
			argument = int64(number)
		}
		table[name] = argument
	}
	return table
}

// declare declares what is not there yet. The broker refuses what is there with other arguments.
func (d definitions) declare(t *testing.T, channel *amqp091.Channel) {
	t.Helper()
	for _, e := range d.Exchanges {
		require.NoError(t, channel.ExchangeDeclare(e.Name, e.Kind, true, false, false, false, e.Arguments.table()), e.Name)
	}
	for _, q := range d.Queues {
		_, err := channel.QueueDeclare(q.Name, true, false, false, false, q.Arguments.table())
		require.NoError(t, err, q.Name)
	}
	for _, b := range d.Bindings {
		require.NoError(t, channel.QueueBind(b.Queue, b.Key, b.Exchange, false, nil), b)
	}
}

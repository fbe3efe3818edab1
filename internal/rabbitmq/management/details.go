package management

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/url"
)

// Queue has what the API states about a queue, of the columns that were asked for. Its figures are up to ten seconds
// old.
type Queue struct {
	Name       string    `json:"name"`
	Type       string    `json:"type"`
	State      string    `json:"state"` // empty: not stated
	Durable    bool      `json:"durable"`
	Arguments  Arguments `json:"arguments"`
	Policy     string    `json:"policy"`
	Operator   string    `json:"operator_policy"`
	Effective  Arguments `json:"effective_policy_definition"` // the definition of both policies; nil: not stated
	Messages   int       `json:"messages"`                    // all of them
	Stated     bool      `json:"-"`                           // Messages is known: it is not in a queue's first seconds
	Ready      int       `json:"messages_ready"`
	Unacked    int       `json:"messages_unacknowledged"`
	Expired    int       `json:"messages_dlx"`     // the messages that wait for the queue that they go to
	Delayed    int       `json:"messages_delayed"` // the messages that a queue of RabbitMQ 4.3 or later delays itself
	Published  int       `json:"-"`                // messages of clients since the queue or the node began
	Counted    bool      `json:"-"`                // Published is known: the broker does not count what it forwards itself
	Consumers  int       `json:"consumers"`
	AutoDelete bool      `json:"auto_delete"`
	Exclusive  bool      `json:"exclusive"`
}

// Setting is an argument of a queue, or else what a policy sets, by its name without x-. The broker prefers the policy
// for overflow alone.
func (q Queue) Setting(name string) any {
	argument, policy := q.Arguments["x-"+name], q.Effective[name]
	if argument == nil || name == "overflow" && policy != nil {
		return policy
	}
	return argument
}

// The columns of queues that are read together.
const (
	Names   = "name"
	Depths  = "name,messages,consumers"
	Limits  = "type,auto_delete,arguments,effective_policy_definition"
	Flows   = "name,messages,messages_dlx,message_stats.publish"
	Details = "name,type,state,durable,auto_delete,exclusive,arguments,policy,operator_policy," +
		"effective_policy_definition,messages,messages_ready,messages_unacknowledged,messages_dlx,messages_delayed,consumers"
)

// ForwardedAtOnce is how many expired messages a queue without a fault can have: its dead-letter worker waits for their
// confirms. More of them are overdue.
const ForwardedAtOnce = 32

// stats is a list without elements where the broker has statistics of a queue, and none of the columns: no client has
// published to it.
type stats struct {
	Publish *int `json:"publish"`
}

func (s *stats) UnmarshalJSON(text []byte) error {
	if bytes.Equal(bytes.TrimSpace(text), []byte("[]")) {
		return nil
	}
	type plain stats
	return json.Unmarshal(text, (*plain)(s))
}

// Queues returns the queues of the virtual host by their names, with some columns. An error contains no password.
func (c *Client) Queues(ctx context.Context, columns string) (map[string]Queue, error) {
	var all []struct {
		Queue
		Messages *int  `json:"messages"`
		Stats    stats `json:"message_stats"`
	}
	if err := c.list(ctx, "queues", columns, &all); err != nil {
		return nil, err
	}
	queues, stated := make(map[string]Queue, len(all)), 0
	for _, q := range all {
		if q.Stated = q.Messages != nil; q.Stated {
			q.Queue.Messages = *q.Messages
			stated++
		}
		if q.Counted = q.Stats.Publish != nil; q.Counted {
			q.Published = *q.Stats.Publish
		}
		queues[q.Name] = q.Queue
	}
	if columns == Depths && stated == 0 && len(all) > 1 {
		return nil, errors.New("the management API states of no queue how many messages it has: try again " +
			"after ten seconds, if the queues are new; if it stays so, management_agent.disable_metrics_collector is set")
	}
	return queues, nil
}

// Limits returns what decides whether a queue can be looked at: the Limits of it.
func (c *Client) Limits(ctx context.Context, queue string) (q Queue, err error) {
	err = c.get(ctx, "queues/"+c.vhost+"/"+url.PathEscape(queue), Limits, &q)
	return q, err
}

// Exchange is an exchange of the virtual host.
type Exchange struct {
	Name       string    `json:"name"`
	Type       string    `json:"type"`
	Durable    bool      `json:"durable"`
	AutoDelete bool      `json:"auto_delete"`
	Internal   bool      `json:"internal"`
	Arguments  Arguments `json:"arguments"`
	Policy     string    `json:"policy"`
}

// Exchanges returns the exchanges of the virtual host by their names.
func (c *Client) Exchanges(ctx context.Context) (map[string]Exchange, error) {
	var all []Exchange
	if err := c.list(ctx, "exchanges", "name,type,durable,auto_delete,internal,arguments,policy", &all); err != nil {
		return nil, err
	}
	exchanges := make(map[string]Exchange, len(all))
	for _, e := range all {
		exchanges[e.Name] = e
	}
	return exchanges, nil
}

// Binding is a binding of a queue.
type Binding struct {
	Exchange string `json:"source"`
	Queue    string `json:"destination"`
	Key      string `json:"routing_key"`
}

// A listedBinding may also be one of an exchange.
type listedBinding struct {
	Binding
	To string `json:"destination_type"`
}

// Bindings returns the bindings of all queues of the virtual host, except those to the default exchange.
func (c *Client) Bindings(ctx context.Context) (map[Binding]bool, error) {
	all, err := c.bindings(ctx)
	bindings := make(map[Binding]bool, len(all))
	for _, b := range all {
		if b.Exchange != "" && b.To == "queue" {
			bindings[b.Binding] = true
		}
	}
	return bindings, err
}

// Sources returns the names of the exchanges that a queue or another exchange is bound to, except the default exchange.
func (c *Client) Sources(ctx context.Context) (map[string]bool, error) {
	all, err := c.bindings(ctx)
	sources := map[string]bool{}
	for _, b := range all {
		if b.Exchange != "" {
			sources[b.Exchange] = true
		}
	}
	return sources, err
}

func (c *Client) bindings(ctx context.Context) (all []listedBinding, err error) {
	err = c.list(ctx, "bindings", "source,destination,destination_type,routing_key", &all)
	return all, err
}

// Inventory is the objects of a virtual host.
type Inventory struct {
	Exchanges map[string]Exchange
	Queues    map[string]Queue
	Bindings  map[Binding]bool
}

// Inventory returns the objects of the virtual host.
func (c *Client) Inventory(ctx context.Context) (i Inventory, err error) {
	if i.Exchanges, err = c.Exchanges(ctx); err != nil {
		return Inventory{}, err
	}
	if i.Queues, err = c.Queues(ctx, Details); err != nil {
		return Inventory{}, err
	}
	i.Bindings, err = c.Bindings(ctx)
	return i, err
}

// Arguments are those of a queue, an exchange or a policy. Integers are int64.
type Arguments map[string]any

// UnmarshalJSON implements json.Unmarshaler. An empty object can be an empty list.
func (a *Arguments) UnmarshalJSON(text []byte) error {
	if text = bytes.TrimSpace(text); text[0] != '{' {
		if *a = nil; text[0] == '[' {
			*a = Arguments{}
		}
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var arguments map[string]any
	if err := decoder.Decode(&arguments); err != nil {
		return err
	}
	for key, value := range arguments {
		if number, is := value.(json.Number); is {
			arguments[key] = numberOf(number)
		}
	}
	*a = arguments
	return nil
}

func numberOf(n json.Number) any {
	if whole, err := n.Int64(); err == nil {
		return whole
	}
	float, _ := n.Float64()
	return float
}

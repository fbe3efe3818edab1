package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/tools/child"
)

// Broker is a RabbitMQ and the commands that disturb it. A shell runs the commands. An empty command is not available.
type Broker struct {
	Name       string
	URL        string
	Management string // the management API; by default on the AMQP port plus 10,000
	Ctl        string // runs rabbitmqctl with the arguments that follow
	Kill       string // sends SIGKILL to the broker
	Start      string // starts the broker with its old data and returns when it is ready
	Survivors  []string
}

func (b Broker) management() (*rabbithole.Client, error) {
	client, err := broker.Client(b.URL, b.Management)
	if err != nil {
		return nil, err
	}
	client.SetTimeout(20 * time.Second)
	return client, nil
}

func run(command string, args ...string) error {
	_, err := child.Shell(command, args...)
	return err
}

// Restore undoes the changes of a row that ended with an error.
func (b Broker) Restore() error {
	var faults []error
	if b.Start != "" {
		faults = append(faults, run(b.Start))
	}
	if b.Ctl != "" {
		faults = append(faults, run(b.Ctl, memory.set, "0.4"), run(b.Ctl, disk.set, "50MB")) // the defaults
	}
	client, err := b.management()
	if err != nil {
		return errors.Join(append(faults, err)...)
	}
	return errors.Join(append(faults, clean(client, namePrefix(b.Name)))...)
}

// forwards reports whether the node can forward messages from its tiers. The deletion of queues can end the supervisor
// of that until the node is restarted: rabbitmq-server #16652.
func (b Broker) forwards() bool {
	if b.Ctl == "" {
		return true // not known
	}
	answer, err := child.Shell(b.Ctl, "eval", "whereis(rabbit_fifo_dlx_sup).")
	return err != nil || !strings.Contains(answer, "undefined")
}

func (b Broker) restart() error {
	return errors.Join(run(b.Ctl, "stop_app"), run(b.Ctl, "start_app"))
}

// await returns when the broker accepts connections.
func (b Broker) await(ctx context.Context) error {
	for {
		connection, err := amqp091.Dial(b.URL)
		if err == nil {
			return connection.Close()
		}
		if !sleep(ctx, 200*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// clean removes policies, queues, exchanges and users whose names begin with the prefix.
func clean(client *rabbithole.Client, prefix string) error {
	policies, err := client.ListPolicies()
	if err != nil {
		return err
	}
	for _, p := range policies {
		if strings.HasPrefix(p.Name, prefix) {
			_, _ = client.DeletePolicy(p.Vhost, p.Name)
		}
	}
	if err := broker.Remove(client, func(name string) bool { return strings.HasPrefix(name, prefix) }); err != nil {
		return err
	}
	users, err := client.ListUsers()
	for _, u := range users {
		if strings.HasPrefix(u.Name, prefix) {
			_, _ = client.DeleteUser(u.Name)
		}
	}
	return err
}

// sleep reports whether the context lasted for the duration.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// FromEnvironment returns the broker at AMQP_URL, with the commands in BROKER_CTL, BROKER_KILL and BROKER_START.
func FromEnvironment() Broker {
	b := Broker{
		Name: "AMQP_URL", URL: os.Getenv("AMQP_URL"), Management: os.Getenv("AMQP_MANAGEMENT_URL"),
		Ctl: os.Getenv("BROKER_CTL"), Kill: os.Getenv("BROKER_KILL"), Start: os.Getenv("BROKER_START"),
	}
	if client, err := b.management(); err == nil {
		if about, err := client.Overview(); err == nil {
			b.Name = about.RabbitMQVersion
		}
	}
	return b
}

// dial connects to the first node that answers.
func (b Broker) dial(heartbeat time.Duration) (connection *amqp091.Connection, err error) {
	for _, address := range append([]string{b.URL}, b.Survivors...) {
		if connection, err = amqp091.DialConfig(address, amqp091.Config{Heartbeat: heartbeat}); err == nil {
			break
		}
	}
	return connection, err
}

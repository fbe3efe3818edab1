//go:build unix

package main

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
)

// broker is a RabbitMQ to work with, and what stop must remove.
type broker struct {
	Variables map[string]string // the environment of a command that uses it, by names
	Node      *node             `json:",omitempty"` // the node that this program started
	Container string            `json:",omitempty"` // the container that this program started
}

// names are those of a broker's variables. One that is not known has no value.
var names = []string{
	"AMQP_URL", "AMQP_MANAGEMENT_URL", "AMQP_PROMETHEUS_URL", "AMQP_TLS_ADDRESS",
	"BROKER_CTL", "BROKER_KILL", "BROKER_START",
}

// environ returns an environment with the broker's variables, and without those of another broker.
func (b broker) environ(environment []string) []string {
	clean := without(environment, names...)
	for _, name := range names {
		if value := b.Variables[name]; value != "" {
			clean = append(clean, name+"="+value)
		}
	}
	return clean
}

func (b broker) stop() {
	if b.Node != nil {
		b.Node.stop()
	}
	if b.Container != "" {
		removeContainer(b.Container)
	}
}

// named returns the broker at AMQP_URL.
func named() (broker, error) {
	b := broker{Variables: map[string]string{}}
	for _, name := range names {
		b.Variables[name] = os.Getenv(name)
	}
	uri, err := url.Parse(b.Variables["AMQP_URL"])
	if err != nil {
		return broker{}, errors.New("no valid URL") // the error of url.Parse contains the URL with its password
	}
	if err := b.handshake(); err != nil {
		return broker{}, fmt.Errorf("no broker answers at %s: %w. If `make broker-down` has removed it: unset "+
			"AMQP_URL", uri.Redacted(), err)
	}
	return b, nil
}

// without leaves out the variables with these names or prefixes.
func without(environment []string, prefixes ...string) []string {
	return slices.DeleteFunc(slices.Clone(environment), func(entry string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(entry, prefix) })
	})
}

// quote returns a text as one word for a shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

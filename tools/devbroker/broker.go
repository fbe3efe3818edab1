//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"
)

// broker is a RabbitMQ to work with, and what stop must remove.
type broker struct {
	URL, Management, Ctl string
	Prometheus           string // the address of its exporter, without a path
	Kill, Start          string // commands that SIGKILL a private node and start it again

	Node      *node  `json:",omitempty"` // the node that this program started
	Container string `json:",omitempty"` // the container that this program started
}

type variable struct{ name, value string }

func (b broker) variables() []variable {
	var known []variable
	for _, v := range []variable{
		{"AMQP_URL", b.URL}, {"AMQP_MANAGEMENT_URL", b.Management}, {"AMQP_PROMETHEUS_URL", b.Prometheus},
		{"BROKER_CTL", b.Ctl}, {"BROKER_KILL", b.Kill}, {"BROKER_START", b.Start},
	} {
		if v.value != "" {
			known = append(known, v)
		}
	}
	return known
}

// environ returns the environment of a command that uses the broker, without the variables of another broker.
func (b broker) environ(environment []string) []string {
	clean := without(environment, "AMQP_URL=", "AMQP_MANAGEMENT_URL=", "AMQP_PROMETHEUS_URL=", "BROKER_CTL=",
		"BROKER_KILL=", "BROKER_START=")
	for _, v := range b.variables() {
		clean = append(clean, v.name+"="+v.value)
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
func named(ctx context.Context) (broker, error) {
	b := broker{
		URL:        os.Getenv("AMQP_URL"),
		Management: os.Getenv("AMQP_MANAGEMENT_URL"),
		Prometheus: os.Getenv("AMQP_PROMETHEUS_URL"),
		Ctl:        os.Getenv("BROKER_CTL"),
		Kill:       os.Getenv("BROKER_KILL"),
		Start:      os.Getenv("BROKER_START"),
	}
	uri, err := url.Parse(b.URL)
	if err != nil {
		return broker{}, errors.New("no valid URL") // the error of url.Parse contains the URL with its password
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := handshake(ctx, uri); err != nil {
		return broker{}, fmt.Errorf("no broker answers at %s: %w. If `make broker-down` has removed it: unset "+
			"AMQP_URL", uri.Redacted(), err)
	}
	return b, nil
}

func without(environment []string, prefixes ...string) []string {
	var left []string
next:
	for _, entry := range environment {
		for _, prefix := range prefixes {
			if strings.HasPrefix(entry, prefix) {
				continue next
			}
		}
		left = append(left, entry)
	}
	return left
}

// quote returns a text as one word for a shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

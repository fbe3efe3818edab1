package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// clinic is a virtual host of a test of doctor.
type clinic struct {
	t       *testing.T
	vhost   string
	uri     string // as the user of the tests
	client  *rabbithole.Client
	channel *amqp091.Channel
}

func newClinic(t *testing.T) *clinic {
	t.Helper()
	c := &clinic{t: t, vhost: unique(t, "wmretry_doctor"), client: managementOf(t)}
	_, err := c.client.PutVhost(c.vhost, rabbithole.VhostSettings{})
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = c.client.DeleteVhost(c.vhost) })
	_, err = c.client.UpdatePermissionsIn(c.vhost, c.client.Username, rabbithole.Permissions{Configure: ".*", Write: ".*", Read: ".*"})
	require.NoError(t, err)
	c.uri = c.address(c.client.Username, c.client.Password)
	connection, err := amqp091.Dial(c.uri)
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	c.channel, err = connection.Channel()
	require.NoError(t, err)
	return c
}

func (c *clinic) address(user, password string) string {
	uri, err := url.Parse(brokerURL(c.t))
	require.NoError(c.t, err)
	uri.User, uri.Path = url.UserPassword(user, password), "/"+c.vhost
	return uri.String()
}

// patient is the environment of a user who is an administrator with these permissions.
func (c *clinic) patient(configure, write, read string) []string {
	c.t.Helper()
	user := unique(c.t, "wmretry_doctor")
	_, err := c.client.PutUser(user, rabbithole.UserSettings{Password: "canary-9", Tags: rabbithole.UserTags{"administrator"}})
	require.NoError(c.t, err)
	c.t.Cleanup(func() { _, _ = c.client.DeleteUser(user) })
	_, err = c.client.UpdatePermissionsIn(c.vhost, user, rabbithole.Permissions{Configure: configure, Write: write, Read: read})
	require.NoError(c.t, err)
	return []string{"AMQP_URL=" + c.address(user, "canary-9"), "AMQP_MANAGEMENT_URL=" + c.client.Endpoint}
}

// operator is a patient with the exported permissions of an operator, for these work queues.
func (c *clinic) operator(works ...string) []string {
	c.t.Helper()
	args := []string{"topology", "export", "--permissions", "--schedule", "1s 1h"}
	for _, work := range works {
		args = append(args, "--queue", work)
	}
	of := regexp.MustCompile(`set_permissions -p '.*' operator '(.*)' '(.*)' '(.*)'`).FindStringSubmatch(run(c.t, 0, args...).stdout)
	require.Len(c.t, of, 4)
	return c.patient(of[1], of[2], of[3])
}

// app runs an app with a handler for each topic, and serves its health. The handlers fail no message.
func (c *clinic) app(topics ...string) (rabbit retry.Connection, health string) {
	c.t.Helper()
	app := config.Config{AMQP: amqp.NewDurableQueueConfig(c.uri), Policy: retry.Policy{Schedule: backoff.Schedule{time.Second, time.Hour}}}
	of, _ := runApp(c.t, app, func(of retry.Connection, router *message.Router) {
		for _, topic := range topics {
			of.AddConsumerHandler(router, topic, topic, func(*message.Message) error { return nil })
		}
	})
	return of, serve(c.t, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(of.Health()) })
}

// serve returns the address of a server with a query, which is a secret.
func serve(t testing.TB, handler http.HandlerFunc) string {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL + "/health?token=canary-9"
}

// declared declares what an app declares for a work queue.
func (c *clinic) declared(work string, change func(*topology.Config, *topology.Queue)) {
	c.t.Helper()
	of, queue := topology.Config{Tiers: backoff.Schedule{time.Second, time.Hour}.Tiers()}, topology.Queue{Name: work, Durable: true}
	if change != nil {
		change(&of, &queue)
	}
	require.NoError(c.t, topology.New(of, queue).Declare(c.channel))
}

func (c *clinic) queue(name string, arguments amqp091.Table) {
	c.t.Helper()
	_, err := c.channel.QueueDeclare(name, true, false, false, false, arguments)
	require.NoError(c.t, err)
}

func (c *clinic) policy(name, pattern string, definition rabbithole.PolicyDefinition) {
	c.t.Helper()
	_, err := c.client.PutPolicy(c.vhost, name, rabbithole.Policy{Pattern: pattern, ApplyTo: "queues", Definition: definition})
	require.NoError(c.t, err)
}

func (c *clinic) publish(exchange, key string, n int) {
	c.t.Helper()
	send(c.t, c.channel, exchange, key, slices.Repeat([]amqp091.Publishing{{Expiration: "3600000"}}, n)...)
}

// definitions is all that the virtual host has.
func (c *clinic) definitions() string {
	c.t.Helper()
	definitions, err := c.client.ListVhostDefinitions(c.vhost)
	require.NoError(c.t, err)
	text, err := json.Marshal(definitions)
	require.NoError(c.t, err)
	return string(text)
}

type diagnosis struct {
	Broker   map[string]any
	Findings []finding
	WaysIn   []finding `json:"ways_in"`
	Unseen   []string
}

type finding struct {
	Rule, Subject, What string
	Do                  []string
}

func (d diagnosis) names() (names []string) {
	for _, f := range append(d.Findings, d.WaysIn...) {
		names = append(names, f.Rule+" "+f.Subject)
	}
	slices.Sort(names)
	return names
}

// examine runs doctor until it finds these, because the management API states some figures late.
func (c *clinic) examine(environ []string, want []string, args ...string) diagnosis {
	c.t.Helper()
	slices.Sort(want)
	var d diagnosis
	var r result
	for deadline := time.Now().Add(2 * patience); ; {
		r = start(c.t, environ, append([]string{"doctor", "--json"}, args...)...).wait()
		if all := lines[diagnosis](c.t, r.stdout); len(all) == 1 { // else the API of a busy broker has not answered
			d = all[0]
		}
		if slices.Equal(want, d.names()) || time.Now().After(deadline) {
			break
		}
		time.Sleep(time.Second)
	}
	require.Empty(c.t, r.stderr)
	require.Equal(c.t, want, d.names(), r.stdout)
	assert.Equal(c.t, min(len(d.Findings), 1), r.code)
	assert.NotContains(c.t, r.stdout, "canary-9")
	for _, f := range append(d.Findings, d.WaysIn...) {
		assert.NotEmpty(c.t, f.Do, f.Subject)
	}
	return d
}

// TestDoctorOfAHealthyApp: an app of Connect has no finding, and doctor leaves everything as it is.
func TestDoctorOfAHealthyApp(t *testing.T) {
	t.Parallel()
	c := newClinic(t)
	_, health := c.app("orders", "mails")
	before := c.definitions()
	operator := c.operator("orders", "mails")
	d := c.examine(operator, nil, "--health", health, "--ignore", "support")
	assert.Empty(t, d.Unseen)
	r := runWith(t, 0, operator, "doctor", "--health", health, "--ignore", "support")
	assert.Regexp(t, `(?m)^versions: wmretry \S+, library \S+, go1\S+$\n^RabbitMQ \d.*$\n^virtual host `+c.vhost+`, user \S+ \(administrator\)$`, r.stdout)
	assert.Regexp(t, `(?m)^orders +0 +0 +0 +1$`, r.stdout)
	assert.Regexp(t, `(?m)^health of http://127\.0\.0\.1:\d+/health: \{"Links":\[\{"Name":"consuming","Connected":true,`, r.stdout)
	assert.Regexp(t, `(?m)^Nothing is wrong\.$`, r.stdout)
	assert.NotContains(t, r.stdout, "canary-9")
	assert.Equal(t, before, c.definitions())

	version := fmt.Sprint(d.Broker["rabbitmq_version"])
	if !strings.HasPrefix(version, "4.3.") || !time.Now().Before(time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)) {
		c.examine(operator, []string{"support RabbitMQ " + version}, "--health", health)
	} else {
		c.examine(operator, nil, "--health", health)
	}
}

// TestDoctorFindsEachFault makes one virtual host with all faults, beside a healthy work queue.
func TestDoctorFindsEachFault(t *testing.T) {
	t.Parallel()
	c := newClinic(t)
	rabbit, health := c.app("orders", "paused")
	require.NoError(t, rabbit.Pause("paused"))
	late := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
		_ = json.NewEncoder(w).Encode(rabbit.Health())
	})
	c.declared("plain", func(of *topology.Config, queue *topology.Queue) {
		of.WorkQueueMode, queue.Arguments = topology.Leave, amqp091.Table{"x-queue-type": "quorum"}
	})
	c.declared("billing", nil)
	c.policy("short", `^billing\.retry\.1h$`, rabbithole.PolicyDefinition{"message-ttl": 1000, "max-length": 50, "dead-letter-routing-key": "x"})
	c.policy("letters", `^billing\.dead$`, rabbithole.PolicyDefinition{"expires": 3600000, "delivery-limit": 7, "max-length": 5, "dead-letter-exchange": "retry"})
	c.declared("kept", nil)
	c.policy("dead letters of kept", `^kept\.dead$`, rabbithole.PolicyDefinition{"max-length": 100000})
	c.queue("limited.dead", amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": 6})
	c.declared("limited2", nil)
	require.NoError(t, c.channel.QueueBind("limited.dead", "dead.limited", "retry", false, nil))
	c.declared("unbound", nil)
	require.NoError(t, c.channel.QueueUnbind("unbound.retry.1h", "1h.unbound", "retry", nil))
	require.NoError(t, c.channel.QueueUnbind("unbound", "*.unbound", "retry.return.any", nil))
	c.declared("full", func(_ *topology.Config, queue *topology.Queue) {
		queue.Arguments = amqp091.Table{"x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish", "x-dead-letter-exchange": "retry"}
	})
	c.publish("", "full", 1)
	c.publish("retry", "1s.full", 100) // a full queue takes some more
	const hostile = "evil\x1b[31m'.poison"
	c.queue(hostile, nil)
	c.queue("hand.wait", amqp091.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders", "x-message-ttl": 3600000})
	c.queue("hand.each", amqp091.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"})
	c.publish("", "hand.each", 2)

	common := []string{
		"unprotected plain", "tier unbound.retry.1h", `missing binding unbound of retry.return.any with key "*.unbound"`,
		"overdue full.retry.1s", "limit limited.dead", "missing limited",
		"policy billing.retry.1h", "policy billing.retry.1h", "policy billing.retry.1h",
		"policy billing.dead", "policy billing.dead", "policy billing.dead", "policy billing.dead",
		"consumers billing", "consumers full", "consumers kept", "consumers limited2", "consumers plain", "consumers unbound", "consumers paused",
		"poison-queue " + hostile, "ttl-queue hand.each", "ttl-queue hand.wait",
	}
	operator := c.operator("orders", "paused", "plain", "billing", "kept", "limited", "limited2", "unbound", "full")
	args := []string{"--ignore", "support", "--health"}
	c.examine(operator, append([]string{"clock " + strings.TrimSuffix(late, "?token=canary-9")}, common...), append(args, late)...)
	text := runWith(t, 1, operator, append([]string{"doctor"}, append(args, health)...)...).stdout
	assert.NotRegexp(t, escape, text)
	assert.Contains(t, text, `poison-queue evil\x1b[31m'.poison`)
	assert.Regexp(t, `(?m)^policies of billing\.dead: \{.*"max-length":5`, text)
}

// TestDoctorThatCannotLook has the exit code 2.
func TestDoctorThatCannotLook(t *testing.T) {
	t.Parallel()
	for _, environ := range [][]string{{"AMQP_URL=amqp://guest:guest@127.0.0.1:1/"}, {"AMQP_MANAGEMENT_URL=http://127.0.0.1:1"}} {
		r := runWith(t, 2, environ, "doctor", "--json")
		assert.Empty(t, r.stdout)
		assert.Contains(t, r.stderr, "127.0.0.1:1")
	}
	for want, args := range map[string][]string{
		"without a user and a password": {"--health", "http://shop:canary-9@127.0.0.1/"},
		"must be like http://host":      {"--health", "127.0.0.1:80"},
		`there is no rule "policies"`:   {"--ignore", "policies"},
	} {
		r := runWith(t, 64, nil, append([]string{"doctor"}, args...)...)
		assert.Contains(t, r.stderr, want)
		assert.NotContains(t, r.stderr, "canary-9")
	}
}

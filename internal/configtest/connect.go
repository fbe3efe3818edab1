package configtest

import (
	"crypto/tls"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/edge"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq"
)

// Connecting is the Connect of a major.
type Connecting[C any, M edge.Major[C]] func(Config[C, M], watermill.LoggerAdapter, ...middleware.HandlerOptions) (*rabbitmq.Connection, error)

// RunConnect runs the tests of Connect that need no broker.
func RunConnect[C any, M edge.Major[C]](t *testing.T, connect Connecting[C, M], m Major[C]) {
	s := suite[C, M]{Major: m}
	t.Run("all faults are reported at once", func(t *testing.T) { s.connectReportsAllFaults(t, connect) })
	t.Run("a schedule of the defaults", func(t *testing.T) { s.connectWithASchedule(t, connect) })
	t.Run("settings that cannot be kept are refused", func(t *testing.T) { s.connectRefuses(t, connect) })
	t.Run("a decision about every field", s.everyFieldIsDecided)
}

// nowhere is an address at which no broker answers.
const nowhere = "amqp://shop:secret@127.0.0.1:1/"

func (s suite[C, M]) connectReportsAllFaults(t *testing.T, connect Connecting[C, M]) {
	broken := s.config(func(c *Config[C, M], app Fields) {
		*app.URI = nowhere
		*app.NoRequeueOnNack = true
		c.Prefix, c.Schedule = "a.*", backoff.Schedule{0}
		set(&c.AMQP, true, "Publish", "Immediate")
	})
	_, err := connect(broken, nil, middleware.HandlerOptions{
		Concurrency: -1, Schedule: backoff.Schedule{-time.Second},
		Middleware: func(c *middleware.TieredRetryConfig) { c.PublishTimeout = -time.Second },
	})
	require.Error(t, err)
	for _, text := range []string{
		"NoRequeueOnNack", `Prefix is "a.*"`, "retry 1: delay 0s", "Publish.Immediate",
		"Concurrency is -1", "retry 1: delay -1s", "PublishTimeout is -1s",
	} {
		assert.ErrorContains(t, err, text)
	}
	_, err = connect(s.config(), nil, middleware.HandlerOptions{}, middleware.HandlerOptions{})
	assert.ErrorContains(t, err, "2 HandlerOptions were given")
	_, err = connect(s.config(), nil, middleware.HandlerOptions{Concurrency: -2}, middleware.HandlerOptions{
		Schedule: backoff.Schedule{0}, Middleware: func(c *middleware.TieredRetryConfig) { c.MaxHold = -time.Second },
	})
	for _, text := range []string{
		"2 HandlerOptions were given", "HandlerOptions 1: Concurrency is -2", "HandlerOptions 2: Schedule: backoff: retry 1", "MaxHold is -1s",
	} {
		assert.ErrorContains(t, err, text)
	}
	_, err = connect(s.config(), nil, middleware.HandlerOptions{Concurrency: 65_536})
	assert.ErrorContains(t, err, "Concurrency is 65536: it must be between 0 (the default) and 65535")
	assert.NotContains(t, err.Error(), "\n", "one fault")
}

// connectWithASchedule: the Schedule of the defaults is the one of a configuration without one, and is validated once.
func (s suite[C, M]) connectWithASchedule(t *testing.T, connect Connecting[C, M]) {
	config := s.config(func(c *Config[C, M], app Fields) { *app.URI, c.Schedule = nowhere, nil })
	_, err := connect(config, nil, middleware.HandlerOptions{Schedule: backoff.Constant(time.Second, 2)})
	require.ErrorContains(t, err, "cannot open the connection for consuming", "the configuration is valid")
	_, err = connect(config, nil, middleware.HandlerOptions{Schedule: backoff.Schedule{-time.Second}})
	require.ErrorContains(t, err, "invalid HandlerOptions: Schedule: backoff: retry 1: delay -1s")
	assert.NotContains(t, err.Error(), "\n", "one fault")
	_, err = connect(config, nil, middleware.HandlerOptions{})
	require.ErrorContains(t, err, "invalid BuilderConfig: Schedule: backoff: no retries")
}

func (s suite[C, M]) connectRefuses(t *testing.T, connect Connecting[C, M]) {
	for want, change := range map[string]func(*C, Fields){
		"AMQP.Publish.Immediate is true":         func(c *C, _ Fields) { set(c, true, "Publish", "Immediate") },
		"AMQP.Consume.Qos.PrefetchSize is 9":     func(c *C, _ Fields) { set(c, 9, "Consume", "Qos", "PrefetchSize") },
		"AMQP.Consume.Qos.PrefetchCount is -1":   func(c *C, _ Fields) { set(c, -1, "Consume", "Qos", "PrefetchCount") },
		"PrefetchCount is 65536":                 func(c *C, _ Fields) { set(c, 65_536, "Consume", "Qos", "PrefetchCount") },
		"Consumer.Tag: has 256 bytes":            func(c *C, _ Fields) { set(c, strings.Repeat("t", 256), "Consume", "Consumer") },
		"Consumer.Arguments":                     func(_ *C, app Fields) { *app.Consume = amqp091.Table{"x": struct{}{}} },
		"AMQP.Connection: TLS: is set, but":      func(_ *C, app Fields) { *app.TLS = &tls.Config{ServerName: "broker"} },
		"BackoffMaxInterval: -1s":                func(c *C, _ Fields) { reconnect(c, 0, -time.Second) },
		"BackoffInitialInterval: 2s, at most Ba": func(c *C, _ Fields) { reconnect(c, 2*time.Second, time.Second) },
	} {
		_, err := connect(s.config(func(c *Config[C, M], app Fields) { change(&c.AMQP, app) }), nil)
		assert.ErrorContains(t, err, want)
	}
	// A handler with a Group needs no Queue.GenerateName: the configuration is valid, and no broker answers.
	config := s.config(func(c *Config[C, M], _ Fields) { c.AMQP = s.PubSub(nowhere, "mails") })
	at(reflect.ValueOf(&config.AMQP).Elem(), "Queue", "GenerateName").SetZero()
	_, err := connect(config, nil, middleware.HandlerOptions{Group: "mails"})
	require.ErrorContains(t, err, "cannot open the connection for consuming")
	assert.NotContains(t, err.Error(), "secret")
}

// everyFieldIsDecided fails when a major has a field that Connect does not know. The fields after "documented" are in the doc comment
// of rabbitmq.Connect.
func (s suite[C, M]) everyFieldIsDecided(t *testing.T) {
	decided := strings.Fields(`
		used: Connection.AmqpURI Connection.TLSConfig Connection.AmqpConfig Marshaler TopologyBuilder
		Exchange.GenerateName Exchange.Type Exchange.Durable Exchange.AutoDeleted Exchange.Internal Exchange.NoWait Exchange.Arguments
		Queue.Durable Queue.NoWait Queue.Arguments QueueBind.GenerateRoutingKey QueueBind.NoWait QueueBind.Arguments
		Consume.Exclusive Consume.NoLocal Consume.Arguments
		refused: Queue.AutoDelete Queue.Exclusive Publish.Transactional Consume.NoRequeueOnNack
		documented: Connection.Reconnect Queue.GenerateName Publish.GenerateRoutingKey Publish.Mandatory Publish.ConfirmDelivery
		Publish.Immediate Publish.ChannelPoolSize Consume.Consumer Consume.NoWait
		Consume.Qos.PrefetchCount Consume.Qos.PrefetchSize Consume.Qos.Global`)
	decided = slices.DeleteFunc(decided, func(word string) bool { return strings.HasSuffix(word, ":") })
	assert.ElementsMatch(t, leaves(reflect.TypeFor[C](), ""), decided)
}

// leaves returns the paths of all fields that are not structs of the major.
func leaves(of reflect.Type, prefix string) (paths []string) {
	for i := range of.NumField() {
		field := of.Field(i)
		if field.Type.Kind() == reflect.Struct && strings.HasSuffix(field.Type.Name(), "Config") {
			paths = append(paths, leaves(field.Type, prefix+field.Name+".")...)
		} else {
			paths = append(paths, prefix+field.Name)
		}
	}
	return paths
}

func set[C any](config *C, value any, path ...string) {
	at(reflect.ValueOf(config).Elem(), path...).Set(reflect.ValueOf(value))
}

func reconnect[C any](config *C, initial, longest time.Duration) {
	*config = withReconnect(*config)
	pointer := at(reflect.ValueOf(config).Elem(), "Connection", "Reconnect")
	pointer.Elem().FieldByName("BackoffInitialInterval").SetInt(int64(initial))
	pointer.Elem().FieldByName("BackoffMaxInterval").SetInt(int64(longest))
}

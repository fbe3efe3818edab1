// Package secrets_test prints the configurations of all modules.
package secrets_test

import (
	"bytes"
	"crypto/tls"
	"database/sql"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/nats-io/nats.go"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/kafkaretry"
	"github.com/tieredretry/watermill-retry/backends/natsretry"
	"github.com/tieredretry/watermill-retry/backends/postgresretry"
	"github.com/tieredretry/watermill-retry/backends/redisretry"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/config/amqp3"
	"github.com/tieredretry/watermill-retry/inbox"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/page"
	"github.com/tieredretry/watermill-retry/letters/relayletters"
	"github.com/tieredretry/watermill-retry/observe"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
	"github.com/tieredretry/watermill-retry/retrytest/rabbit"
)

// configs are all exported configurations: TestAllConfigurationsArePrinted of internal/layout compares the names with
// the folder api.
var configs = map[string]any{
	"backends/kafkaretry.Config":    kafkaretry.Config{},
	"backends/natsretry.Config":     natsretry.Config{},
	"backends/postgresretry.Config": postgresretry.Config{},
	"backends/redisretry.Config":    redisretry.Config{},
	"config.Config":                 config.Config{},
	"config/amqp3.Config":           amqp3.Config{},
	"inbox.Config":                  inbox.Config{},
	"letters.GoTestConfig":          letters.GoTestConfig{},
	"letters/relayletters.Config":   relayletters.Config{},
	"observe.Config":                observe.Config{},
	"rabbitmq.Settings":             rabbitmq.Settings{},
	"rabbitmq/deadletter.Config":    deadletter.Config{},
	"letters/page.Config":           page.Config{},
	"rabbitmq/topology.Config":      topology.Config{},
	"relay.Config":                  relay.Config{},
	"retry.Options":                 retry.Options{},
	"retry.Policy":                  retry.Policy{},
	"retrytest.Config":              retrytest.Config{},
	"retrytest.SimulationConfig":    retrytest.SimulationConfig{},
	"retrytest/rabbit.Config":       rabbit.Config{},
}

const secret = "S3cr3tPw"

// addresses are the texts that have a password. open are those that have none.
var (
	addresses = map[string]string{
		"URI": "amqp://shop:" + secret + "@localhost:5672/", "AmqpURI": "amqp://shop:" + secret + "@localhost:5672/",
		"Management": "http://shop:" + secret + "@localhost:15672",
	}
	open = []string{
		"Consumer", "GenerateName", "Group", "Key", "Name", "Package", "Prefix", "QueueType", "Table", "TierGroup", "Topic", "Type", "Version", "WorkQueueMode",
	}
)

// clients are what an app has made of its passwords.
func clients(t *testing.T) map[reflect.Type]any {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: "localhost:1", Username: "shop", Password: secret})
	parsed, err := pgx.ParseConfig("postgres://shop:" + secret + "@localhost:1/shop")
	require.NoError(t, err)
	db := sql.OpenDB(stdlib.GetConnector(*parsed))
	t.Cleanup(func() { _, _ = client.Close(), db.Close() })
	kafka := sarama.NewConfig()
	kafka.Net.SASL.User, kafka.Net.SASL.Password = "shop", secret
	return map[reflect.Type]any{
		reflect.TypeFor[*amqp091.Config]():       &amqp091.Config{SASL: []amqp091.Authentication{&amqp091.PlainAuth{Username: "shop", Password: secret}}},
		reflect.TypeFor[*tls.Config]():           &tls.Config{Certificates: []tls.Certificate{{PrivateKey: secret}}},
		reflect.TypeFor[*sarama.Config]():        kafka,
		reflect.TypeFor[*nats.Conn]():            &nats.Conn{Opts: nats.Options{Url: "nats://shop:" + secret + "@localhost:1", User: "shop", Password: secret, Token: secret}},
		reflect.TypeFor[*sql.DB]():               db,
		reflect.TypeFor[redis.UniversalClient](): client,
	}
}

// fill sets all addresses and clients of a configuration. A field that it does not know is a fault of the test.
func fill(t *testing.T, value reflect.Value, path string, clients map[reflect.Type]any) (filled int) {
	t.Helper()
	if client, is := clients[value.Type()]; is {
		value.Set(reflect.ValueOf(client))
		return 1
	}
	name := path[strings.LastIndexByte(path, '.')+1:]
	switch value.Kind() {
	case reflect.String:
		if address, is := addresses[name]; is {
			value.SetString(address)
			return 1
		}
		assert.Contains(t, open, name, "%s: add the field to addresses if its text can have a password, and otherwise to open", path)
	case reflect.Struct:
		for i := range value.NumField() {
			if field := value.Type().Field(i); field.IsExported() {
				filled += fill(t, value.Field(i), path+"."+field.Name, clients)
			}
		}
	case reflect.Pointer:
		ours := strings.Contains(value.Type().Elem().PkgPath(), "watermill")
		assert.True(t, ours, "%s: add a %v with a password to clients", path, value.Type())
	}
	return filled
}

// TestNoConfigurationPrintsASecret: with fmt, slog and JSON, alone and within other values.
func TestNoConfigurationPrintsASecret(t *testing.T) {
	t.Parallel()
	known, filled := clients(t), 0
	for name, empty := range configs {
		of := reflect.TypeOf(empty)
		assert.True(t, strings.HasSuffix(of.PkgPath()+"."+of.Name(), "watermill-retry/"+name), "%s is a %v", name, of)
		pointer := reflect.New(of)
		filled += fill(t, pointer.Elem(), name, known)
		value := pointer.Elem().Interface()
		for form, printed := range map[string]any{
			"a value": value, "a pointer": pointer.Interface(), "a list": []any{value, pointer.Interface()}, "a field": struct{ Config any }{value},
			"a map": map[string]any{"config": pointer.Interface()},
		} {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
				shows(t, fmt.Sprintf(verb, printed), "%s of %s, %s", name, form, verb)
			}
			var log bytes.Buffer
			slog.New(slog.NewTextHandler(&log, nil)).Info("configured", "config", printed)
			slog.New(slog.NewJSONHandler(&log, nil)).Info("configured", "config", printed)
			watermill.NewSlogLogger(slog.New(slog.NewTextHandler(&log, nil))).Info("configured", watermill.LogFields{"config": printed})
			shows(t, log.String(), "%s of %s, slog", name, form)
			encoded, err := json.Marshal(printed) // configurations with functions have no JSON
			shows(t, fmt.Sprint(string(encoded), err), "%s of %s, JSON", name, form)
		}
		assert.Equal(t, value, pointer.Elem().Interface(), "printing changes nothing")
	}
	assert.GreaterOrEqual(t, filled, 17, "the passwords that were there to print")
	for name, address := range addresses {
		assert.Contains(t, address, secret, name)
	}
}

// shows fails if a text has the secret, also in hex.
func shows(t *testing.T, text, format string, args ...any) {
	t.Helper()
	if strings.Contains(text, secret) || strings.Contains(strings.ToLower(text), fmt.Sprintf("%x", secret)) {
		t.Errorf("%s shows the password", fmt.Sprintf(format, args...))
	}
}

// TestPrintsHaveTheRest: the addresses without their passwords, and all other fields.
func TestPrintsHaveTheRest(t *testing.T) {
	t.Parallel()
	settings := rabbitmq.Settings{Prefix: "shop", Management: addresses["Management"]}
	var read rabbitmq.Settings
	encoded, err := json.Marshal(settings)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(encoded, &read))
	assert.Equal(t, rabbitmq.Settings{Prefix: "shop", Management: "http://shop:xxxxx@localhost:15672"}, read)
	app := config.Config{Settings: settings}
	app.AMQP.Connection.AmqpURI = addresses["AmqpURI"]
	app3 := amqp3.Config{Settings: settings}
	app3.AMQP.Connection.AmqpURI = addresses["AmqpURI"]
	for _, one := range []any{
		app, app3, deadletter.Config{URI: addresses["URI"], Management: settings.Management},
	} {
		encoded, err := json.Marshal(one)
		require.NoError(t, err, "%T", one)
		for _, text := range []string{string(encoded), fmt.Sprintf("%+v", one)} {
			assert.Contains(t, text, "amqp://shop:xxxxx@localhost:5672/", "%T", one)
			assert.Contains(t, text, "http://shop:xxxxx@localhost:15672", "%T", one)
		}
	}
	for name, address := range addresses { // a text that is no address is not printed in part
		broken := strings.Replace(address, secret, secret+"/%", 1)
		for _, one := range []any{deadletter.Config{URI: broken, Management: broken}, rabbitmq.Settings{Management: broken}} {
			shows(t, fmt.Sprintf("%+v", one), "%T with a broken %s", one, name)
		}
	}
	assert.True(t, slices.IsSorted(open), "sorted")
}

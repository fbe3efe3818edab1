package publisher

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const canary = "c4nary"

func TestValidateReportsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := New(ConnectionConfig{
		AMQP:             &amqp091.Config{Recovery: &amqp091.Recovery{}, TLSClientConfig: &tls.Config{}},
		TLS:              &tls.Config{},
		ConfirmTimeout:   -time.Second,
		WriteTimeout:     -2 * time.Second,
		MaxInFlight:      65537,
		ReconnectInitial: time.Minute,
		ReconnectMax:     time.Second,
	}, Config{
		Exchange:       strings.Repeat("x", 256),
		Route:          func(topic string) (string, string, error) { return "events", topic, nil },
		DeclareTimeout: -1,
	}, nil)
	require.Error(t, err)
	for _, words := range []string{
		"URI: is empty", "AMQP.Recovery: is set", "TLS: is set, and so is AMQP.TLSClientConfig", "256 bytes, at most 255",
		"Route: is set, and so is Exchange", "DeclareTimeout: -1ns", "ConfirmTimeout: -1s", "WriteTimeout: -2s", "MaxInFlight: 65537, must be between 1 and 65536",
		"ReconnectInitial: 1m0s, at most ReconnectMax, 1s",
	} {
		assert.Contains(t, err.Error(), words)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	const uri = "amqp://guest:guest@localhost:5672/"
	for name, test := range map[string]struct {
		config ConnectionConfig
		fault  string
	}{
		"minimal":             {ConnectionConfig{URI: uri}, ""},
		"no user":             {ConnectionConfig{URI: "amqp://localhost"}, ""},
		"encrypted":           {ConnectionConfig{URI: "amqps://localhost", TLS: &tls.Config{}}, ""},
		"slow reconnect":      {ConnectionConfig{URI: uri, ReconnectInitial: time.Minute}, ""},
		"TLS without amqps":   {ConnectionConfig{URI: uri, TLS: &tls.Config{}}, `the URI's scheme is "amqp"`},
		"AMQP TLS, not amqps": {ConnectionConfig{URI: uri, AMQP: &amqp091.Config{TLSClientConfig: &tls.Config{}}}, "nothing would be encrypted"},
		"negative in flight":  {ConnectionConfig{URI: uri, MaxInFlight: -1}, "MaxInFlight: -1"},
		"negative pause":      {ConnectionConfig{URI: uri, ReconnectInitial: -1}, "ReconnectInitial: -1ns"},
		"negative most pause": {ConnectionConfig{URI: uri, ReconnectMax: -1}, "ReconnectMax: -1ns"},
		"encoded @":           {ConnectionConfig{URI: "amqp://us%40er:p%40ss%2F@localhost/v%40host?cacertfile=a%40b"}, ""},
		"@ in the vhost":      {ConnectionConfig{URI: "amqp://guest:guest@localhost/v@host"}, "percent-encoded"},
		"@ in a parameter":    {ConnectionConfig{URI: "amqp://guest:guest@localhost/?cacertfile=a@b"}, "percent-encoded"},
		"scheme":              {ConnectionConfig{URI: "http://localhost"}, "amqp or amqps"},
		"port":                {ConnectionConfig{URI: "amqp://localhost:port"}, "URI: "},
		"white space":         {ConnectionConfig{URI: "amqp://local host"}, "URI: "},
		"heartbeat":           {ConnectionConfig{URI: uri + "?heartbeat=often"}, "parameter"},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.config.Validate()
			if test.fault == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.fault)
		})
	}
}

func TestValidateRouting(t *testing.T) {
	t.Parallel()
	route := func(topic string) (string, string, error) { return "events", topic, nil }
	require.NoError(t, Config{}.Validate())
	require.NoError(t, Config{Route: route}.Validate())
	require.NoError(t, Config{Exchange: strings.Repeat("x", 255)}.Validate())
	require.ErrorContains(t, Config{Exchange: strings.Repeat("x", 256)}.Validate(), "256 bytes, at most 255")
	require.ErrorContains(t, Config{Exchange: "events", Route: route}.Validate(), "only one of them may be set")
}

func TestNoErrorShowsThePassword(t *testing.T) {
	t.Parallel()
	for _, uri := range []string{
		"amqp://user:" + canary + "/x@localhost/",
		"amqp://user:12#" + canary + "@localhost/",
		"amqp://user:12?" + canary + "@localhost/",
		"amqp://user:12/" + canary + "@localhost/",
		"amqp://user:p@ss/" + canary + "@localhost:5672/",
		"amqp://user:p@ss?" + canary + "@localhost/",
		"amqp://user:p@ss#" + canary + "@localhost/",
		"amqp://user:p@ss/" + canary + "?x@localhost/",
		"amqp://" + canary + "@ss/" + canary + "@localhost/",
		"amqp:user:" + canary + "@localhost",
		"amqp://user:%zz" + canary + "@localhost/",
		"amqp://user:" + canary + "@localhost:port/",
		"amqp://user:" + canary + "@local host/",
		"amqp://user:" + canary + "@localhost/?heartbeat=" + canary,
		"amqp://user:" + canary + "@localhost/?channel_max=x",
		"http://user:" + canary + "@localhost/",
		canary + "://localhost/",
		"user:" + canary + "@localhost",
	} {
		require.Error(t, ConnectionConfig{URI: uri}.Validate(), uri)
		_, err := New(ConnectionConfig{URI: uri}, Config{}, nil)
		require.Error(t, err, uri)
		assert.NotContains(t, fmt.Sprintf("%v %+v %#v", err, err, err), canary)
	}
}

func TestNoLogShowsThePassword(t *testing.T) {
	t.Parallel()
	address, _ := serve(t)
	var log bytes.Buffer
	uri := "amqp://user:" + canary + "@" + address + "/vhost"
	// The scripted broker opens the connection and never answers to confirm.select.
	_, err := Open(ConnectionConfig{URI: uri, ConfirmTimeout: time.Second, AMQP: &amqp091.Config{Heartbeat: time.Second}}, watermill.NewStdLoggerWithOut(&log, true, true))
	require.Error(t, err)
	assert.NotContains(t, err.Error()+log.String(), canary)
}

func TestTheAppsConfigIsNotModified(t *testing.T) {
	t.Parallel()
	app := &amqp091.Config{
		SASL:            []amqp091.Authentication{&amqp091.PlainAuth{Username: "user", Password: canary}},
		Properties:      amqp091.Table{"product": "app"},
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13},
	}
	config := ConnectionConfig{AMQP: app}
	first := config.dial().Client(connectionName)
	first.Properties["capabilities"] = amqp091.Table{}
	first.TLSClientConfig.ServerName = "changed"
	first.SASL[0] = nil
	assert.Equal(t, amqp091.Table{"product": "app"}, app.Properties)
	assert.Empty(t, app.TLSClientConfig.ServerName)
	assert.NotNil(t, app.SASL[0])

	second := config.dial().Client(connectionName)
	assert.Equal(t, amqp091.Table{"product": "app", "connection_name": "watermill-retry publisher"}, second.Properties)
	assert.EqualValues(t, tls.VersionTLS13, second.TLSClientConfig.MinVersion)

	app.Properties["connection_name"] = "the app's own"
	assert.Equal(t, "the app's own", config.dial().Client(connectionName).Properties["connection_name"])
	plain := ConnectionConfig{}
	assert.Equal(t, amqp091.NewConnectionProperties()["product"], plain.dial().Client(connectionName).Properties["product"])
}

func TestDefaultMarshal(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("uuid", []byte("payload"))
	msg.Metadata.Set("key", "value")
	p, err := marshal(msg)
	require.NoError(t, err)
	assert.Equal(t, amqp091.Publishing{
		Headers: amqp091.Table{"key": "value", UUIDHeader: "uuid"}, Body: []byte("payload"), DeliveryMode: amqp091.Persistent,
	}, p)
}

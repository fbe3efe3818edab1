package wire

import (
	"crypto/tls"
	"errors"
	"fmt"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const canary = "c4nary"

func TestEveryFaultIsReported(t *testing.T) {
	t.Parallel()
	_, err := OpenLink(Config{
		AMQP:             &amqp091.Config{Recovery: &amqp091.Recovery{}, TLSClientConfig: &tls.Config{}},
		TLS:              &tls.Config{},
		WriteTimeout:     -2 * time.Second,
		ReconnectInitial: time.Minute,
		ReconnectMax:     time.Second,
	}, "test", nil)
	require.Error(t, err)
	for _, words := range []string{
		"URI: is empty", "AMQP.Recovery: is set", "TLS: is set, and so is AMQP.TLSClientConfig", "WriteTimeout: -2s",
		"ReconnectInitial: 1m0s, at most ReconnectMax, 1s",
	} {
		assert.Contains(t, err.Error(), words)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	const uri = "amqp://guest:guest@localhost:5672/"
	for name, test := range map[string]struct {
		config Config
		fault  string
	}{
		"minimal":             {Config{URI: uri}, ""},
		"no user":             {Config{URI: "amqp://localhost"}, ""},
		"encrypted":           {Config{URI: "amqps://localhost", TLS: &tls.Config{}}, ""},
		"slow reconnect":      {Config{URI: uri, ReconnectInitial: time.Minute}, ""},
		"TLS without amqps":   {Config{URI: uri, TLS: &tls.Config{}}, `the URI's scheme is "amqp"`},
		"AMQP TLS, not amqps": {Config{URI: uri, AMQP: &amqp091.Config{TLSClientConfig: &tls.Config{}}}, "nothing would be encrypted"},
		"negative pause":      {Config{URI: uri, ReconnectInitial: -1}, "ReconnectInitial: -1ns"},
		"negative most pause": {Config{URI: uri, ReconnectMax: -1}, "ReconnectMax: -1ns"},
		"encoded @":           {Config{URI: "amqp://us%40er:p%40ss%2F@localhost/v%40host?cacertfile=a%40b"}, ""},
		"@ in the vhost":      {Config{URI: "amqp://guest:guest@localhost/v@host"}, "percent-encoded"},
		"@ in a parameter":    {Config{URI: "amqp://guest:guest@localhost/?cacertfile=a@b"}, "percent-encoded"},
		"scheme":              {Config{URI: "http://localhost"}, "amqp or amqps"},
		"port":                {Config{URI: "amqp://localhost:port"}, "URI: "},
		"white space":         {Config{URI: "amqp://local host"}, "URI: "},
		"heartbeat":           {Config{URI: uri + "?heartbeat=often"}, "parameter"},
	} {
		t.Run(name, func(t *testing.T) {
			err := errors.Join(test.config.Faults()...)
			if test.fault == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.fault)
		})
	}
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
		require.NotEmpty(t, Config{URI: uri}.Faults(), uri)
		_, err := OpenLink(Config{URI: uri}, "test", nil)
		require.Error(t, err, uri)
		assert.NotContains(t, fmt.Sprintf("%v %+v %#v", err, err, err), canary)
	}
}

func TestTheAppsConfigIsNotModified(t *testing.T) {
	t.Parallel()
	const connectionName = "watermill-retry publisher"
	app := &amqp091.Config{
		SASL:            []amqp091.Authentication{&amqp091.PlainAuth{Username: "user", Password: canary}},
		Properties:      amqp091.Table{"product": "app"},
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13},
	}
	config := Config{AMQP: app}
	first := config.Client(connectionName)
	first.Properties["capabilities"] = amqp091.Table{}
	first.TLSClientConfig.ServerName = "changed"
	first.SASL[0] = nil
	assert.Equal(t, amqp091.Table{"product": "app"}, app.Properties)
	assert.Empty(t, app.TLSClientConfig.ServerName)
	assert.NotNil(t, app.SASL[0])

	second := config.Client(connectionName)
	assert.Equal(t, amqp091.Table{"product": "app", "connection_name": "watermill-retry publisher"}, second.Properties)
	assert.EqualValues(t, tls.VersionTLS13, second.TLSClientConfig.MinVersion)

	app.Properties["connection_name"] = "the app's own"
	assert.Equal(t, "the app's own", config.Client(connectionName).Properties["connection_name"])
	plain := Config{}
	assert.Equal(t, amqp091.NewConnectionProperties()["product"], plain.Client(connectionName).Properties["product"])
}

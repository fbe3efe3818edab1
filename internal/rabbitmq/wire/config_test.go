package wire

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const canary = "c4nary"

func TestFaults(t *testing.T) {
	const uri = "amqp://guest:guest@localhost:5672/"
	for name, test := range map[string]struct {
		config Config
		faults string // each between commas
	}{
		"all at once": {Config{TLS: &tls.Config{}, AMQP: &amqp091.Config{Recovery: &amqp091.Recovery{}, TLSClientConfig: &tls.Config{}}},
			"URI: is empty, AMQP.Recovery: is set, and so is AMQP.TLSClientConfig"},
		"minimal":             {Config{URI: uri}, ""},
		"no user":             {Config{URI: "amqp://localhost"}, ""},
		"encrypted":           {Config{URI: "amqps://localhost", TLS: &tls.Config{}}, ""},
		"slow reconnect":      {Config{URI: uri, ReconnectInitial: time.Minute}, ""},
		"TLS without amqps":   {Config{URI: uri, TLS: &tls.Config{}}, `the URI's scheme is "amqp"`},
		"AMQP TLS, not amqps": {Config{URI: uri, AMQP: &amqp091.Config{TLSClientConfig: &tls.Config{}}}, "nothing would be encrypted"},
		"encoded @":           {Config{URI: "amqp://us%40er:p%40ss%2F@localhost/v%40host?cacertfile=a%40b"}, ""},
		"@ in the vhost":      {Config{URI: "amqp://guest:guest@localhost/v@host"}, "percent-encoded"},
		"@ in a parameter":    {Config{URI: "amqp://guest:guest@localhost/?cacertfile=a@b"}, "percent-encoded"},
		"scheme":              {Config{URI: "http://localhost"}, "amqp or amqps"},
		"port":                {Config{URI: "amqp://localhost:port"}, "URI: "},
		"white space":         {Config{URI: "amqp://local host"}, "URI: "},
		"heartbeat":           {Config{URI: uri + "?heartbeat=often"}, "parameter"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.faults == "" {
				require.Empty(t, test.config.Faults())
				return
			}
			_, err := OpenLink(test.config, "test", nil)
			for fault := range strings.SplitSeq(test.faults, ", ") {
				require.ErrorContains(t, err, fault)
			}
		})
	}
}

func TestNoErrorShowsThePassword(t *testing.T) {
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

// over is a connection that has ended.
type over struct{ io.ReadWriteCloser }

func (over) Read([]byte) (int, error)    { return 0, io.EOF }
func (over) Write(b []byte) (int, error) { return 0, errors.New("closed") }
func (over) Close() error                { return nil }

// The client knows before the link that a connection has ended. It is not given out again.
func TestAwaitGivesNoClosedConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := amqp091.Open(over{}, amqp091.Config{})
		require.Error(t, err)
		synctest.Wait()
		require.True(t, client.IsClosed())
		next, changed := &Connection{Client: &amqp091.Connection{}}, make(chan struct{})
		l := &Link{}
		l.state.Store(&State{Connection: &Connection{Client: client}, Changed: changed})
		got := make(chan *Connection, 1)
		go func() { got <- l.Await(t.Context().Done()) }()
		synctest.Wait()
		assert.Empty(t, got)
		l.state.Store(&State{Connection: next})
		close(changed)
		assert.Same(t, next, <-got)
	})
}

func TestHintOfAClientCertificate(t *testing.T) {
	for _, ended := range []error{amqp091.ErrClosed, io.EOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		assert.Contains(t, hintOf(amqp091.URI{Scheme: "amqps"}, fmt.Errorf("write: %w", ended)), "client's certificate", ended)
		assert.Empty(t, hintOf(amqp091.URI{Scheme: "amqp"}, ended))
	}
	assert.Empty(t, hintOf(amqp091.URI{Scheme: "amqps"}, errors.New("tls: certificate required")), "the error already names the cause")
}

func TestBackoffDoublesUpToItsBound(t *testing.T) {
	b := Backoff{Initial: 100 * time.Millisecond, Max: 500 * time.Millisecond}
	for range 2 {
		for _, bound := range []time.Duration{100, 200, 400, 500, 500} {
			bound *= time.Millisecond
			assert.Equal(t, bound, b.Bound())
			pause := b.Next()
			assert.LessOrEqual(t, pause, bound)
			assert.GreaterOrEqual(t, pause, bound/2)
		}
		b.Reset()
	}
	b.AtLeast(time.Second)
	assert.Equal(t, time.Second, b.Bound())
	assert.GreaterOrEqual(t, b.Next(), 500*time.Millisecond)
	assert.Equal(t, b.Max, b.Bound())
}

// TestTheReasonOfAMessageThatTheClientCannotRead is told from that of a lost connection, and both mean that the
// connection is lost.
func TestTheReasonOfAMessageThatTheClientCannotRead(t *testing.T) {
	ofClient := func(cause string) *amqp091.Error { return &amqp091.Error{Code: amqp091.FrameError, Reason: cause} }
	require.ErrorIs(t, reasonOf(ofClient(amqp091.ErrSyntax.Error())), ErrUnreadable)
	require.True(t, IsLost(reasonOf(ofClient(amqp091.ErrSyntax.Error()))))
	require.NotErrorIs(t, reasonOf(ofClient("EOF")), ErrUnreadable)
	require.NotErrorIs(t, reasonOf(&amqp091.Error{Code: amqp091.SyntaxError, Reason: amqp091.ErrSyntax.Reason, Server: true}), ErrUnreadable)
}

package tls_test

import (
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

// ways contains the two fields of watermill-amqp's configuration for the TLS configuration.
var ways = map[string]func(*amqp.Config, *tls.Config){
	"ConnectionConfig.TLSConfig": func(c *amqp.Config, t *tls.Config) { c.Connection.TLSConfig = t },
	"AmqpConfig.TLSClientConfig": func(c *amqp.Config, t *tls.Config) {
		c.Connection.AmqpConfig = &amqp091.Config{Locale: "en_US", TLSClientConfig: t}
	},
}

func TestTLS(t *testing.T) {
	l := listen(t)
	t.Run("app", l.serves)
	t.Run("refused", l.refuses)
}

// serves: every connection of the app, also the short-lived ones of the builder, is encrypted and sends its certificate.
func (l listener) serves(t *testing.T) {
	t.Parallel()
	for name, with := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := testapp.NewParts(t, func(b *config.Config) {
				b.AMQP = amqp.NewDurableQueueConfig(l.uri(t, "localhost"))
				with(&b.AMQP, l.client(t))
			})
			queue := a.Queue("orders")
			processed := testapp.NewLedger()
			a.Handle(queue, 2, func(msg *message.Message) error {
				if msg.UUID == testapp.ID(9) {
					return backoff.Permanent(testapp.ErrDown)
				}
				return processed.HandleRetries(msg)
			})
			a.Run()
			testapp.Send(t, "", queue, testapp.Orders(10)...)
			processed.Wait(t, 9, time.Minute)
			assert.Equal(t, "order 00009", string(testapp.Take(t, queue+".dead", 1)[0].Body))
			assert.Empty(t, processed.Twice())
		})
	}
}

// unauthenticated contains the errors for a missing or unknown client certificate in TLS 1.3. The broker's answer comes after the
// client's handshake: amqp091-go can fail on the closed connection before it has read the reason.
var unauthenticated = []string{
	"certificate required", "unknown certificate authority", publisherHint,
	"cannot connect to AMQP: ", // watermill-amqp's
}

const publisherHint = "with TLS, the broker ends it when the client's certificate is missing or refused"

// refuses: the errors of the subscriber and of the failure publisher contain the reason.
func (l listener) refuses(t *testing.T) {
	t.Parallel()
	other := newAuthority(t, "another CA")
	for name, row := range map[string]struct {
		change func(*tls.Config)
		words  []string // the error contains at least one of them
	}{
		"wrong CA":              {func(c *tls.Config) { c.RootCAs = other.pool() }, []string{"certificate signed by unknown authority"}},
		"no client certificate": {func(c *tls.Config) { c.Certificates = nil }, unauthenticated},
		"no client certificate, TLS 1.2": {func(c *tls.Config) { c.Certificates, c.MaxVersion = nil, tls.VersionTLS12 },
			[]string{"handshake failure", "certificate required"}},
		"client certificate of another CA": {func(c *tls.Config) {
			c.Certificates = []tls.Certificate{other.issue(t, "app", x509.ExtKeyUsageClientAuth)}
		},
			unauthenticated},
		"wrong host name": {func(c *tls.Config) { c.ServerName = "broker.example" },
			[]string{"certificate is valid for localhost, not broker.example"}},
	} {
		for field, with := range ways {
			t.Run(name+"/"+field, func(t *testing.T) {
				t.Parallel()
				c := l.client(t)
				row.change(c)
				app := amqp.NewDurableQueueConfig(l.uri(t, "localhost"))
				with(&app, c)
				b, err := config.NewBuilder(config.Config{AMQP: app, Policy: retry.Policy{Schedule: backoff.Schedule{1e8}}})
				require.NoError(t, err)
				_, err = b.NewTieredRetry(nil)
				oneOf(t, err, row.words)
				_, err = amqp.NewSubscriber(b.SubscriberConfig(), watermill.NopLogger{})
				oneOf(t, err, row.words)
			})
		}
	}

	t.Run("TLS configuration without amqps", func(t *testing.T) {
		app := amqp.NewDurableQueueConfig(broker.URL(t))
		app.Connection.TLSConfig = l.client(t)
		b, err := config.NewBuilder(config.Config{AMQP: app, Policy: retry.Policy{Schedule: backoff.Schedule{1e8}}})
		if err == nil {
			_, err = b.NewTieredRetry(nil)
		}
		require.ErrorContains(t, err, "nothing would be encrypted")
	})
}

func oneOf(t *testing.T, err error, words []string) {
	t.Helper()
	require.Error(t, err)
	for _, word := range words {
		if strings.Contains(err.Error(), word) {
			return
		}
	}
	assert.Fail(t, "the error does not contain the reason", "%q contains none of %q", err, words)
}

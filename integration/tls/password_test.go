package tls_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

// canary is a real user's password. It must be printed nowhere, neither complete nor encoded, nor one of its parts, which reserved
// characters separate.
const canary = "c4nary-one@c4nary-two/c4nary-three?c4nary#four%c4nary:five"

func sings(text string) bool {
	return strings.Contains(text, "c4nary") || strings.Contains(text, base64.StdEncoding.EncodeToString([]byte(canary))) ||
		strings.Contains(text, fmt.Sprintf("%x", canary))
}

// witness records everything that is logged, at every level, and everything else that it receives.
type witness struct {
	mu     *sync.Mutex
	lines  *[]string
	fields watermill.LogFields
}

func newWitness() witness { return witness{&sync.Mutex{}, &[]string{}, nil} }

func (w witness) add(words ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := fmt.Sprint(w.fields)
	for _, word := range words {
		text += fmt.Sprintf(" %v %+v %q", word, word, fmt.Sprint(word))
		if err, ok := word.(error); ok {
			text += fmt.Sprintf(" %#v", err)
			for err := errors.Unwrap(err); err != nil; err = errors.Unwrap(err) {
				text += fmt.Sprintf(" %#v", err)
			}
		}
	}
	*w.lines = append(*w.lines, text)
}

func (w witness) Error(msg string, err error, fields watermill.LogFields) { w.add(msg, err, fields) }
func (w witness) Info(msg string, fields watermill.LogFields)             { w.add(msg, fields) }
func (w witness) Debug(msg string, fields watermill.LogFields)            { w.add(msg, fields) }
func (w witness) Trace(msg string, fields watermill.LogFields)            { w.add(msg, fields) }
func (w witness) With(fields watermill.LogFields) watermill.LoggerAdapter {
	all := maps.Clone(fields)
	maps.Copy(all, w.fields)
	return witness{w.mu, w.lines, all}
}

func (w witness) count(text string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, line := range *w.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// silent asserts that the witness has received something, and no part of the password.
func (w witness) silent(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.NotEmpty(t, *w.lines)
	for _, line := range *w.lines {
		assert.False(t, sings(line), line)
	}
}

// user creates a user with the canary as its password.
func user(t *testing.T, configure, write, read string) (name string) {
	t.Helper()
	name = broker.User(t, configure, write, read)
	_, err := broker.Management(t).PutUser(name, rabbithole.UserSettings{Password: canary})
	require.NoError(t, err)
	return name
}

func address(t *testing.T, user, host string) string {
	t.Helper()
	uri, err := url.Parse(broker.WithUser(t, user, canary))
	require.NoError(t, err)
	if host != "" {
		uri.Host = host
	}
	return uri.String()
}

func builder(t *testing.T, uri, prefix string) *config.Builder {
	t.Helper()
	b, err := config.NewBuilder(config.Config{
		AMQP: amqp.NewDurableQueueConfig(uri), Policy: retry.Policy{Schedule: backoff.Schedule{100 * time.Millisecond}},
		Settings: rabbitmq.Settings{Prefix: prefix},
	})
	require.NoError(t, err)
	return b
}

// TestWitnessFindsThePassword proves that the tests below can fail.
func TestWitnessFindsThePassword(t *testing.T) {
	for _, text := range []string{canary, url.QueryEscape(canary), url.PathEscape(canary), "c4nary-two", base64.StdEncoding.EncodeToString([]byte(canary))} {
		w := newWitness()
		w.With(watermill.LogFields{"uri": text}).Trace("", nil)
		assert.True(t, sings((*w.lines)[0]), text)
	}
}

// TestPasswordInFailedConnections: the broker is unreachable, refuses the user, or has no TLS.
func TestPasswordInFailedConnections(t *testing.T) {
	t.Parallel()
	w := newWitness()
	l := listen(t)
	known := user(t, ".*", ".*", ".*")
	var failing sync.WaitGroup
	encrypted := strings.Replace(address(t, known, "localhost:"+l.port), "amqp:", "amqps:", 1)
	for name, uri := range map[string]string{
		"no broker":          address(t, known, "127.0.0.1:1"),
		"no host":            address(t, known, "no-such-host.invalid:5672"),
		"wrong password":     address(t, "guest", ""),
		"no user":            address(t, "unknown", ""),
		"no virtual host":    address(t, known, "") + "nowhere",
		"TLS to a plain one": strings.Replace(address(t, known, ""), "amqp:", "amqps:", 1),
		"plain to a TLS one": address(t, known, "localhost:"+l.port),
		"no certificate":     encrypted,
	} {
		failing.Go(func() { // the broker answers late to a wrong password
			b := builder(t, uri, "")
			_, err := b.NewTieredRetry(w)
			if assert.Error(t, err, name) {
				w.add(err)
			}
			_, err = amqp.NewSubscriber(b.SubscriberConfig(), w)
			if assert.Error(t, err, name) {
				w.add(err)
			}
		})
	}
	failing.Wait()
	w.silent(t)
}

// TestPasswordThatIsChanged between the subscriber's connection and the builder's own, which inspects the queue.
func TestPasswordThatIsChanged(t *testing.T) {
	t.Parallel()
	w := newWitness()
	name, prefix := user(t, ".*", ".*", ".*"), broker.Name(t, "secret")
	broker.Clean(t, prefix)
	queue := "orders_" + prefix
	b := builder(t, address(t, name, ""), prefix)
	broker.Declare(t, b.Topology(queue).Declare)
	subscriber, err := amqp.NewSubscriber(b.SubscriberConfig(), w)
	require.NoError(t, err)
	_, err = broker.Management(t).PutUser(name, rabbithole.UserSettings{Password: "another"})
	require.NoError(t, err)
	err = subscriber.SubscribeInitialize(queue)
	require.ErrorContains(t, err, "cannot connect to inspect work queue")
	w.add(err)
	require.NoError(t, subscriber.Close())
	w.silent(t)
}

// TestPasswordOfAnAppInTrouble: the app's topology is printed and exported. The app retries and dead-letters, its failure publisher
// loses its connection, and the broker refuses the password when it reconnects.
func TestPasswordOfAnAppInTrouble(t *testing.T) {
	t.Parallel()
	w := newWitness()
	proxy, _ := broker.Proxy(t)
	name := user(t, ".*", ".*", ".*")
	prefix := broker.Name(t, "secret")
	broker.Clean(t, prefix)
	queue := "orders_" + prefix
	direct, cut := builder(t, address(t, name, ""), prefix), builder(t, address(t, name, proxy.Listen), prefix)

	topology := direct.Topology(queue)
	exported, err := json.Marshal(topology)
	require.NoError(t, err)
	w.add(string(exported), topology)
	w.add(direct.Topology("orders.dead").Validate())

	consuming := cut.SubscriberConfig()
	consuming.Connection.AmqpURI = direct.SubscriberConfig().Connection.AmqpURI
	subscriber, err := amqp.NewSubscriber(consuming, w)
	require.NoError(t, err)
	tiered, err := cut.NewTieredRetry(w)
	require.NoError(t, err)
	router := message.NewDefaultRouter(w)
	calls := testapp.NewLedger()
	router.AddConsumerHandler("handler", queue, subscriber, func(msg *message.Message) error {
		calls.Add(string(msg.Payload))
		return errDown
	}).AddMiddleware(tiered)
	done := make(chan error, 1)
	go func() { done <- router.Run(t.Context()) }()
	<-router.Running()
	send := func(identity string) { testapp.Send(t, "", queue, amqp091.Publishing{Body: []byte(identity)}) }
	send("fine")
	broker.Eventually(t, soon, func() bool { return w.count("Message dead-lettered") == 1 }, "the first message is dead-lettered and confirmed")

	proxy.Stop()
	send("away")
	broker.Eventually(t, soon, func() bool { return w.count("holding the message") > 0 && w.count("Cannot reconnect") > 1 }, "the message is held, and the publisher reconnects")
	management := broker.Management(t)
	_, err = management.PutUser(name, rabbithole.UserSettings{Password: "another"})
	require.NoError(t, err)
	require.NoError(t, proxy.Start())
	broker.Eventually(t, soon, func() bool { return w.count("username or password not allowed") > 0 }, "the broker refuses the password")
	_, err = management.PutUser(name, rabbithole.UserSettings{Password: canary})
	require.NoError(t, err)
	for _, letter := range testapp.Take(t, queue+".dead", 2) {
		w.add(letter.Headers, string(letter.Body))
	}
	assert.Equal(t, map[string]int{"fine": 2, "away": 2}, calls.Counts())

	require.NoError(t, router.Close())
	require.NoError(t, <-done)
	require.NoError(t, cut.Close())
	w.add(testapp.Fail(tiered, cut.SubscriberConfig().Marshaler, queue, message.NewMessage("1", nil), errDown))
	connections, err := management.ListConnections()
	require.NoError(t, err)
	for _, connection := range connections {
		if connection.User == name {
			w.add(fmt.Sprint(connection))
		}
	}
	w.silent(t)
}

//go:build unix

// Package browser_test drives the page of "wmretry ui" in a real browser, on a real RabbitMQ.
package browser_test

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	history "github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/tools/child"
)

const (
	declined  = 12 // letters of the first cause
	refused   = 30 // of the second
	old       = 4  // of the third
	waiting   = 9  // messages on a tier
	orders    = "orders"
	invoices  = "invoices"
	hostileID = `"><script>window.hacked='id'</script>`
)

// hostile runs a script in a page that does not escape it.
const hostile = `"'></pre></title><script>window.hacked='text'</script><img src=x onerror="window.hacked='image'"><svg onload="window.hacked='svg'">` + "\u202e\x1b[31m"

// long is a text without a place to break it.
var long = strings.Repeat("m", 900)

// shop is an app with a virtual host of its own.
type shop struct {
	t          *testing.T
	address    string
	management string
	second     string // further addresses

	rabbit   retry.Connection
	repaired atomic.Bool
	lock     sync.Mutex
	handled  map[string]int // by the UUID, since repaired
}

func newShop(t *testing.T) *shop {
	t.Helper()
	broker := os.Getenv("AMQP_URL")
	require.NotEmpty(t, broker, "set AMQP_URL, or run `make test-wmretry`")
	uri, err := amqp091.ParseURI(broker)
	require.NoError(t, err)
	management := cmp.Or(os.Getenv("AMQP_MANAGEMENT_URL"), (&url.URL{
		Scheme: "http", User: url.UserPassword(uri.Username, uri.Password), Host: net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port+10_000)),
	}).String())
	at, err := url.Parse(management)
	require.NoError(t, err)
	client, err := rabbithole.NewClient(at.Scheme+"://"+at.Host, uri.Username, uri.Password)
	require.NoError(t, err)
	name := "browser-" + rand.Text()[:8]
	answer, err := client.PutVhost(name, rabbithole.VhostSettings{})
	require.NoError(t, err)
	_ = answer.Body.Close()
	t.Cleanup(func() {
		answer, err := client.DeleteVhost(name)
		require.NoError(t, err)
		_ = answer.Body.Close()
	})
	answer, err = client.UpdatePermissionsIn(name, uri.Username, rabbithole.Permissions{Configure: ".*", Write: ".*", Read: ".*"})
	require.NoError(t, err)
	_ = answer.Body.Close()
	uri.Vhost = name
	return &shop{t: t, address: uri.String(), management: management, handled: map[string]int{}}
}

// run runs the app until the test ends. Its messages die, until it is repaired.
func (s *shop) run() {
	s.t.Helper()
	logger := watermill.NopLogger{}
	var err error
	s.rabbit, err = config.Connect(config.Config{
		AMQP: amqp.NewDurableQueueConfig(s.address), Policy: retry.Policy{Schedule: backoff.Schedule{300 * time.Millisecond, 700 * time.Millisecond}},
	}, logger)
	require.NoError(s.t, err)
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	require.NoError(s.t, err)
	s.rabbit.AddConsumerHandler(router, "billing", orders, s.handle)
	s.rabbit.AddConsumerHandler(router, "printing", invoices, func(*message.Message) error { return errors.New("the printer is off") },
		retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{30 * time.Second, 5 * time.Minute, time.Hour}}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		require.NoError(s.t, <-ended)
		require.NoError(s.t, s.rabbit.Close())
	})
	select {
	case <-router.Running():
	case err := <-ended:
		s.t.Fatal(err)
	}
	for i := range declined {
		s.publish(orders, fmt.Sprintf("card-%d", i), message.Metadata{"fails": fmt.Sprintf("card %d of customer %d was declined", 4000+i, i)}, "{}")
	}
	for i := range refused {
		s.publish(orders, fmt.Sprintf("order-%d", i), message.Metadata{"fails": fmt.Sprintf("dial tcp 10.0.0.%d:5432: connect: connection refused", i), "customer": "ada"},
			fmt.Sprintf(`{"order":%d,"items":[{"sku":"book","price":"12.50 EUR"}]}`, i))
	}
	for i := range waiting {
		s.publish(invoices, fmt.Sprintf("invoice-%d", i), nil, "%PDF")
	}
	for i := range old {
		s.old(i)
	}
}

func (s *shop) publish(topic, id string, metadata message.Metadata, body string) {
	s.t.Helper()
	msg := message.NewMessage(id, []byte(body))
	msg.Metadata = metadata
	require.NoError(s.t, s.rabbit.Publisher().Publish(topic, msg))
}

// old puts a letter into the dead-letter queue whose failures were some time apart, and which was redriven before.
func (s *shop) old(number int) {
	connection, err := amqp091.Dial(s.address)
	require.NoError(s.t, err)
	defer connection.Close()
	channel, err := connection.Channel()
	require.NoError(s.t, err)
	first := time.Now().Add(time.Duration(number)*time.Minute - 3*time.Hour).UTC().Truncate(time.Minute)
	metadata := message.Metadata{"_watermill_message_uuid": fmt.Sprintf("01926c5e-order-%d", 4711+number), "customer": "grace", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
	history.Redriven{}.Add(history.PastRedrive{
		At: first.Add(-40 * time.Minute), By: "ada@ops", Note: "after the outage", Failures: 5, DeadReason: "exhausted", Reason: "payments: 503 Service Unavailable",
	}).Write(metadata)
	retry.Record{
		Failures: 5, Snoozes: 2, FirstFailedAt: first, LastFailedAt: first.Add(156 * time.Second), Topic: orders, Handler: "billing",
		Reason: "payments: 503 Service Unavailable (request 7f3a9c, after 812ms)", ErrorType: "*payments.StatusError", DeadReason: retry.DeadReasonExhausted,
	}.Write(metadata)
	headers := amqp091.Table{"attempt": int32(3), "express": true, "weight": 1.5, "ordered_at": first.Add(-3 * time.Hour)}
	for key, value := range metadata {
		headers[key] = value
	}
	require.NoError(s.t, channel.PublishWithContext(context.Background(), "", orders+".dead", true, false, amqp091.Publishing{
		Headers: headers, ContentType: "application/json", AppId: "shop", CorrelationId: "cart-88", Priority: 4, DeliveryMode: amqp091.Persistent,
		Timestamp: first.Add(-42 * time.Minute), Body: []byte(`{"order":4711,"customer":"grace","items":[{"sku":"book","count":2,"price":"12.50 EUR"}],"total":"25.00 EUR"}`),
	}))
}

func (s *shop) handle(msg *message.Message) error {
	if !s.repaired.Load() {
		return errors.New(msg.Metadata["fails"])
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	s.handled[msg.UUID]++
	return nil
}

// had returns what was handled since the app was repaired.
func (s *shop) had() map[string]int {
	s.lock.Lock()
	defer s.lock.Unlock()
	had := map[string]int{}
	for id, times := range s.handled {
		had[id] = times
	}
	return had
}

// build builds the command.
func build(t *testing.T) string {
	t.Helper()
	command := filepath.Join(t.TempDir(), "wmretry")
	require.NoError(t, child.Build("..", command))
	return command
}

// serve runs "wmretry ui" and returns the address of its page. end stops it as Ctrl-C does, and returns what it has printed on stderr.
func (s *shop) serve(command string, flags ...string) (address string, end func() string) {
	s.t.Helper()
	process := exec.Command(command, append([]string{"ui", "--listen", "127.0.0.1:0"}, flags...)...)
	process.Env = append(os.Environ(), "AMQP_URL="+s.address, "AMQP_MANAGEMENT_URL="+s.management, "WMRETRY_URL="+s.second)
	var printed strings.Builder
	process.Stderr = &printed
	stdout, err := process.StdoutPipe()
	require.NoError(s.t, err)
	require.NoError(s.t, process.Start())
	ended := make(chan error, 1)
	s.t.Cleanup(func() { _ = process.Process.Kill() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	go func() { ended <- process.Wait() }()
	require.NoError(s.t, err)
	_, address, found := strings.Cut(strings.TrimSpace(line), "The page is at ")
	require.True(s.t, found, line)
	return address, func() string {
		require.NoError(s.t, process.Process.Signal(syscall.SIGINT))
		select {
		case err := <-ended:
			require.NoError(s.t, err, printed.String())
		case <-time.After(patience):
			s.t.Fatal("wmretry ui does not end")
		}
		return printed.String()
	}
}

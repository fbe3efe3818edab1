// Package broker provides the RabbitMQ of the integration tests: its address, its management API, names that no other
// test uses, and a network that can fail.
package broker

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// URL returns the broker's address. A test without a broker fails; it does not skip.
func URL(t testing.TB) string {
	t.Helper()
	uri := os.Getenv("AMQP_URL")
	if uri == "" {
		t.Fatal("AMQP_URL is not set: run `make test`, which finds or starts a RabbitMQ, or set " +
			"AMQP_URL=amqp://user:password@host:port/")
	}
	return uri
}

// WithUser returns the broker's address for another user.
func WithUser(t testing.TB, user, password string) string {
	t.Helper()
	uri, err := url.Parse(URL(t))
	require.NoError(t, err)
	uri.User = url.UserPassword(user, password)
	return uri.String()
}

// Management returns a client of the broker's management API, at AMQP_MANAGEMENT_URL or at the AMQP port plus 10,000.
func Management(t testing.TB) *rabbithole.Client {
	t.Helper()
	client, err := Client(URL(t), os.Getenv("AMQP_MANAGEMENT_URL"))
	require.NoError(t, err)
	_, err = client.Whoami()
	require.NoError(t, err, "the management API does not answer; set AMQP_MANAGEMENT_URL")
	return client
}

// ManagementURL returns the address of the management API with the user of the tests.
func ManagementURL(t testing.TB) string {
	t.Helper()
	client := Management(t)
	address, err := url.Parse(client.Endpoint)
	require.NoError(t, err)
	address.User = url.UserPassword(client.Username, client.Password)
	return address.String()
}

// Exporter returns the address of the broker's plugin rabbitmq_prometheus: AMQP_PROMETHEUS_URL, or the AMQP port plus
// 10,020.
func Exporter(t testing.TB) string {
	t.Helper()
	if endpoint := os.Getenv("AMQP_PROMETHEUS_URL"); endpoint != "" {
		return endpoint
	}
	uri, err := amqp091.ParseURI(URL(t))
	require.NoError(t, err)
	return "http://" + net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port+10_020))
}

// Queue returns the arguments and the numbers of messages of a queue. It leaves out the consumers: after its close, one
// can stay in the broker's statistics for two minutes in a form that the client cannot read.
func Queue(client *rabbithole.Client, queue string) (*rabbithole.DetailedQueueInfo, error) {
	return client.GetQueueWithParameters("/", queue,
		url.Values{"columns": {"name,arguments,messages,messages_unacknowledged"}})
}

// Name returns a unique name for a queue, exchange, user or prefix.
func Name(t testing.TB, base string) string {
	t.Helper()
	suffix := make([]byte, 4)
	_, err := rand.Read(suffix)
	require.NoError(t, err)
	return base + "_" + hex.EncodeToString(suffix)
}

// Connect opens a connection that is closed when the test ends.
func Connect(t testing.TB) *amqp091.Connection {
	t.Helper()
	connection, err := amqp091.Dial(URL(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

// Version returns the broker's version as a number: 403 for each 4.3.
func Version(t testing.TB) int {
	t.Helper()
	text, _ := Connect(t).Properties["version"].(string)
	var major, minor int
	_, err := fmt.Sscanf(text, "%d.%d", &major, &minor)
	require.NoError(t, err, text)
	return 100*major + minor
}

// Channel opens a channel on a connection of its own.
func Channel(t testing.TB) *amqp091.Channel {
	t.Helper()
	channel, err := Connect(t).Channel()
	require.NoError(t, err)
	return channel
}

// Clean deletes, when the test ends, every queue and exchange whose name contains the text.
func Clean(t testing.TB, text string) {
	t.Helper()
	client := Management(t)
	t.Cleanup(func() {
		require.NoError(t, Remove(client, func(name string) bool { return strings.Contains(name, text) }))
	})
}

// Proxy returns a network between the app and the broker, until the test ends: see NewProxy.
func Proxy(t testing.TB) (*Network, string) {
	t.Helper()
	proxy, address, err := NewProxy(URL(t))
	require.NoError(t, err)
	t.Cleanup(proxy.Stop)
	return proxy, address
}

// Least returns how long a message waits on a tier of this delay at least, by this process's monotonic clock. The
// broker counts in whole milliseconds. While the clock of its host is corrected, Erlang's clock runs up to 1% faster or
// slower until it has caught up (https://www.erlang.org/doc/apps/erts/time_correction.html).
func Least(delay time.Duration) time.Duration { return delay - delay/100 - time.Millisecond }

// Alone fails a test that changes the node and has no name with which make runs it alone.
func Alone(t testing.TB) {
	t.Helper()
	require.True(t, strings.HasPrefix(t.Name(), "TestAlone"), "rename the test to TestAlone...: it changes the node")
}

// Alarm raises the broker's memory alarm, which blocks all publishers, until end is called or the test ends.
func Alarm(t testing.TB) (end func()) {
	t.Helper()
	Alone(t)
	end = sync.OnceFunc(func() { Ctl(t, "set_vm_memory_high_watermark", "0.6") })
	t.Cleanup(end)
	Ctl(t, "set_vm_memory_high_watermark", "0.000001")
	Eventually(t, time.Minute, func() bool {
		nodes, err := Management(t).ListNodes()
		return err == nil && slices.ContainsFunc(nodes, func(n rabbithole.NodeInfo) bool { return n.MemAlarm })
	}, "the alarm")
	return end
}

// Setting sets a setting of the node, an Erlang term of its application rabbit, until the test ends.
func Setting(t testing.TB, name, value string) {
	t.Helper()
	Alone(t)
	set := func(value string) (before string) {
		output := Ctl(t, "eval", fmt.Sprintf(
			"X = application:get_env(rabbit, %[1]s), application:set_env(rabbit, %[1]s, %[2]s), X.", name, value))
		return strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(output), "{ok,"), "}")
	}
	before := set(value)
	t.Cleanup(func() { set(before) })
}

// User creates a user whose password is its name, with these permissions (regular expressions), until the test ends.
func User(t testing.TB, configure, write, read string) string {
	t.Helper()
	client := Management(t)
	name := Name(t, "user")
	_, err := client.PutUser(name, rabbithole.UserSettings{Password: name})
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = client.DeleteUser(name) })
	_, err = client.UpdatePermissionsIn("/", name,
		rabbithole.Permissions{Configure: configure, Write: write, Read: read})
	require.NoError(t, err)
	return name
}

// Ctl runs rabbitmqctl against the broker, with the command in BROKER_CTL, and returns what it printed.
func Ctl(t testing.TB, arguments ...string) string {
	t.Helper()
	prefix := strings.Fields(os.Getenv("BROKER_CTL"))
	require.NotEmpty(t, prefix, "BROKER_CTL is not set: the command that runs rabbitmqctl against the broker at "+
		"AMQP_URL; `make test` sets it")
	output, err := exec.Command(prefix[0], append(prefix[1:], arguments...)...).CombinedOutput()
	require.NoError(t, err, string(output))
	return string(output)
}

package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/creack/pty"
	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/tools/child"
)

// patience is how long a test waits for an event.
const patience = 3 * time.Minute // a busy machine takes minutes

const uuidHeader = "_watermill_message_uuid"

func brokerURL(t testing.TB) string {
	t.Helper()
	uri := os.Getenv("AMQP_URL")
	if uri == "" {
		t.Fatal("AMQP_URL is not set: run `make test`, which finds or starts a RabbitMQ, or set AMQP_URL=amqp://user:password@host:port/")
	}
	return uri
}

func unique(t testing.TB, base string) string {
	t.Helper()
	suffix := make([]byte, 4)
	_, err := rand.Read(suffix)
	require.NoError(t, err)
	return base + "_" + hex.EncodeToString(suffix)
}

func connect(t testing.TB) *amqp091.Connection {
	t.Helper()
	connection, err := amqp091.Dial(brokerURL(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

func channelOf(t testing.TB) *amqp091.Channel {
	t.Helper()
	channel, err := connect(t).Channel()
	require.NoError(t, err)
	return channel
}

func managementOf(t testing.TB) *rabbithole.Client {
	t.Helper()
	uri, err := url.Parse(brokerURL(t))
	require.NoError(t, err)
	endpoint := os.Getenv("AMQP_MANAGEMENT_URL")
	if endpoint == "" {
		port := 5672
		if uri.Port() != "" {
			port, err = strconv.Atoi(uri.Port())
			require.NoError(t, err)
		}
		endpoint = "http://" + net.JoinHostPort(uri.Hostname(), strconv.Itoa(port+10_000))
	}
	password, _ := uri.User.Password()
	client, err := rabbithole.NewClient(endpoint, uri.User.Username(), password)
	require.NoError(t, err)
	return client
}

// queues are a work queue and what the library declares for it.
type queues struct {
	t          testing.TB
	work, dead string
	prefix     string
	channel    *amqp091.Channel
}

// declare declares a quorum queue as the library does, with a tier.
func declare(t testing.TB) *queues {
	t.Helper()
	return declareAs(t, topology.Config{Tiers: backoff.Schedule{time.Minute}.Tiers()}, amqp091.Table{"x-queue-type": "quorum"})
}

// declareWith declares a work queue with a schedule.
func declareWith(t testing.TB, delays ...time.Duration) *queues {
	t.Helper()
	return declareAs(t, topology.Config{Tiers: backoff.Schedule(delays).Tiers()}, nil)
}

// declareAs declares a work queue and what belongs to it. All of it is deleted when the test ends.
func declareAs(t testing.TB, config topology.Config, arguments amqp091.Table) *queues {
	t.Helper()
	work := unique(t, "wmretry_test")
	config.Prefix = work + "_own"
	q := &queues{t: t, work: work, dead: deadletter.QueueOf(work), prefix: config.Prefix, channel: channelOf(t)}
	require.NoError(t, topology.New(config, topology.Queue{Name: work, Durable: true, Arguments: arguments}).Declare(q.channel))
	t.Cleanup(func() { removeAll(t, work) })
	return q
}

// letter is a dead letter as the library publishes it.
func letter(id string, record retry.Record, body []byte) amqp091.Publishing {
	metadata := message.Metadata{}
	record.Write(metadata)
	headers := amqp091.Table{uuidHeader: id}
	for key, value := range metadata {
		headers[key] = value
	}
	return amqp091.Publishing{DeliveryMode: amqp091.Persistent, ContentType: "application/json", Headers: headers, Body: body}
}

// timeout is the record of a message whose retries were used up.
func timeout(n int) retry.Record {
	now := time.Now().UTC().Truncate(time.Millisecond)
	return retry.Record{
		Failures: 3, FirstFailedAt: now.Add(-time.Second), LastFailedAt: now, Topic: "orders", Handler: "ship",
		Reason: fmt.Sprintf("dial 10.0.0.%d: connection refused", n%250), ErrorType: "*net.OpError", DeadReason: retry.DeadReasonExhausted,
	}
}

// send publishes messages, and waits until the broker has confirmed them.
func send(t testing.TB, channel *amqp091.Channel, exchange, key string, messages ...amqp091.Publishing) {
	t.Helper()
	require.NoError(t, channel.Confirm(false))
	var confirms []*amqp091.DeferredConfirmation
	for _, m := range messages {
		m.DeliveryMode = amqp091.Persistent
		confirm, err := channel.PublishWithDeferredConfirm(exchange, key, true, false, m)
		require.NoError(t, err)
		confirms = append(confirms, confirm)
	}
	for _, confirm := range confirms {
		require.True(t, confirm.Wait())
	}
}

// fill publishes dead letters through the library's exchange, and returns their ids.
func (q *queues) fill(n int, make func(i int, id string) amqp091.Publishing) (ids []string) {
	q.t.Helper()
	before := q.count(q.dead)
	var all []amqp091.Publishing
	for i := range n {
		ids = append(ids, watermill.NewUUID())
		all = append(all, make(i, ids[i]))
	}
	send(q.t, channelOf(q.t), q.prefix, "dead."+q.work, all...)
	q.await(q.dead, before+n)
	return ids
}

// runApp runs an app until it is stopped, or the test ends.
func runApp(t testing.TB, c config.Config, add func(retry.Connection, *message.Router)) (rabbit retry.Connection, stop func()) {
	t.Helper()
	rabbit, err := config.Connect(c, nil)
	require.NoError(t, err)
	router := message.NewDefaultRouter(watermill.NopLogger{})
	add(rabbit, router)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(t.Context()) }()
	select {
	case <-router.Running():
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Fatal("the app does not start")
	}
	stop = sync.OnceFunc(func() { _, _ = router.Close(), rabbit.Close() })
	t.Cleanup(stop)
	return rabbit, stop
}

func (q *queues) timeouts(n int) []string {
	return q.fill(n, func(i int, id string) amqp091.Publishing {
		return letter(id, timeout(i), fmt.Appendf(nil, `{"n":%d}`, i))
	})
}

// count returns how many messages of a queue can be delivered.
func (q *queues) count(queue string) int {
	q.t.Helper()
	state, err := q.channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(q.t, err)
	return state.Messages
}

// await waits until a queue has so many messages: it takes a moment to take back what a process has looked at.
func (q *queues) await(queue string, n int) {
	q.t.Helper()
	require.Eventually(q.t, func() bool { return q.count(queue) == n }, patience, 20*time.Millisecond, "%s must have %d messages", queue, n)
}

// take removes all messages of a queue and returns how often each id was there.
func (q *queues) take(queue string) (map[string]int, []amqp091.Delivery) {
	q.t.Helper()
	channel, err := connect(q.t).Channel()
	require.NoError(q.t, err)
	defer func() { _ = channel.Close() }()
	left := q.count(queue)
	deliveries, err := channel.Consume(queue, "", true, false, false, false, nil)
	require.NoError(q.t, err)
	ids := map[string]int{}
	var all []amqp091.Delivery
	for timeout := time.After(patience); len(all) < left; {
		select {
		case d := <-deliveries:
			id, _ := d.Headers[uuidHeader].(string)
			ids[id]++
			all = append(all, d)
		case <-timeout:
			require.Fail(q.t, "the messages do not arrive", "%d of %d in %s", len(all), left, queue)
		}
	}
	return ids, all
}

// binary is the command, built once.
var binary string

func TestMain(m *testing.M) {
	os.Exit(child.WithProgram(".", func(program string) int { binary = program; return m.Run() }))
}

// result is what a process has printed, and its exit code.
type result struct {
	stdout, stderr string
	code           int
}

// process is a running command.
type process struct {
	t              testing.TB
	command        *exec.Cmd
	stdout, stderr *output
	terminal       *os.File
	read           chan struct{} // closed when the terminal is read to its end
}

// output can be read while the process writes.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(text)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// environment is that of the tests without what changes the output.
func environment(t testing.TB, more []string) []string {
	t.Helper()
	own := slices.DeleteFunc(os.Environ(), func(v string) bool {
		for _, name := range []string{"NO_COLOR=", "TERM=", "VISUAL=", "EDITOR="} {
			if strings.HasPrefix(v, name) {
				return true
			}
		}
		return false
	})
	return append(append(own, "AMQP_URL="+os.Getenv("AMQP_URL"), "TERM=xterm-256color"), more...)
}

// start starts the command, with stdin at its end. environment are lines NAME=value.
func start(t testing.TB, environ []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, command: exec.Command(binary, args...), stdout: &output{}, stderr: &output{}}
	p.command.Env = environment(t, environ)
	p.command.Stdout, p.command.Stderr = p.stdout, p.stderr
	require.NoError(t, p.command.Start())
	t.Cleanup(func() { _ = p.command.Process.Kill() })
	return p
}

// onTerminal starts the command on a terminal of 120 columns, which is all of its standard streams.
func onTerminal(t testing.TB, environ []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, command: exec.Command(binary, args...), stdout: &output{}, stderr: &output{}, read: make(chan struct{})}
	p.command.Env = environment(t, environ)
	terminal, err := pty.StartWithSize(p.command, &pty.Winsize{Rows: 40, Cols: 120})
	require.NoError(t, err)
	p.terminal = terminal
	go func() {
		defer close(p.read)
		_, _ = io.Copy(p.stdout, terminal) // ends with EIO
	}()
	t.Cleanup(func() { _, _ = p.command.Process.Kill(), terminal.Close() })
	return p
}

// answer types a line when the terminal shows a text.
func (p *process) answer(shown, line string) {
	p.t.Helper()
	p.await(p.stdout, shown)
	_, err := p.terminal.WriteString(line + "\n")
	require.NoError(p.t, err)
}

func (p *process) await(o *output, text string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return strings.Contains(o.String(), text) }, patience, 10*time.Millisecond, "the command must print %q", text)
}

// wait waits until the process has ended.
func (p *process) wait() result {
	p.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- p.command.Wait() }()
	select {
	case <-ended:
	case <-time.After(2 * patience):
		_ = p.command.Process.Signal(syscall.SIGQUIT) // prints its goroutines
		<-ended
		p.t.Fatalf("%v does not end\n%s\n%s", p.command.Args, p.stdout, p.stderr)
	}
	if p.read != nil {
		<-p.read
	}
	return result{p.stdout.String(), p.stderr.String(), p.command.ProcessState.ExitCode()}
}

// run runs the command, and requires an exit code.
func run(t testing.TB, code int, args ...string) result {
	t.Helper()
	return runWith(t, code, nil, args...)
}

func runWith(t testing.TB, code int, environ []string, args ...string) result {
	t.Helper()
	r := start(t, environ, args...).wait()
	require.Equal(t, code, r.code, "wmretry %s\n%s\n%s", strings.Join(args, " "), r.stdout, r.stderr)
	return r
}

// lines decodes lines of JSON.
func lines[T any](t testing.TB, text string) []T {
	t.Helper()
	var all []T
	for decoder := json.NewDecoder(strings.NewReader(text)); ; {
		var one T
		err := decoder.Decode(&one)
		if err == io.EOF {
			return all
		}
		require.NoError(t, err, text)
		all = append(all, one)
	}
}

type summary struct {
	Total, Done, Other, Kept, Unseen, Redead, Doubtful int

	Interrupted bool
	Error       string
	Causes      []group
}

type group struct {
	Count   int
	Cause   string
	Reason  string
	Example string
	Keys    map[string]int
}

// redriven runs a command with --json and returns its summary, which must add up.
func redriven(t testing.TB, code int, args ...string) summary {
	t.Helper()
	return summaryOf(t, run(t, code, append(args, "--json")...).stdout)
}

func summaryOf(t testing.TB, text string) summary {
	t.Helper()
	all := lines[summary](t, text)
	require.Len(t, all, 1, text)
	s := all[0]
	assert.Equal(t, s.Total, s.Done+s.Other+s.Kept+s.Unseen, "the summary must add up: %s", text)
	return s
}

// escape matches what changes a terminal. Line feeds and tabs do not.
var escape = regexp.MustCompile("[\x00-\x08\x0b-\x1f\x7f\u0080-\u009f\u202e]")

// colour matches the colours and weights of the command itself.
var colour = regexp.MustCompile("\x1b\\[[0-9;]*m")

package command

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/process"
	"github.com/tieredretry/watermill-retry/backends/conformance/pubsub"
	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/tools/child"
)

// binary is the command, built once.
var binary string

func TestMain(m *testing.M) {
	os.Exit(child.WithProgram("../../../cmd/wmretry", func(program string) int { binary = program; return m.Run() }))
}

// waits is the only delay. An app that is stopped at once has not begun with the retry, on a busy machine either.
const waits, tier = 15 * time.Second, "15s"

// names are those of the backends in errors and reports.
var names = map[string]string{
	"redis": "Redis", "nats": "NATS", "postgres": "PostgreSQL", "kafka": "Kafka",
}

// operator is an operator of an app on a server.
type operator struct {
	t       *testing.T
	entry   registry.Entry
	backend pubsub.Backend
	app     pubsub.App
	topic   string
	url     string // of the command
	dead    string // the queue or topic of the letters

	healthy atomic.Bool
	failure atomic.Pointer[error] // of all messages, in place of those by their ids
	mu      sync.Mutex
	first   map[string]*message.Message // what the handler got first
	handled map[string]*message.Message // what it has handled
	calls   int
}

// onEach runs a test on each backend but RabbitMQ.
func onEach(t *testing.T, test func(*operator)) {
	for _, entry := range registry.All() {
		if entry.Expect.Tiers {
			continue
		}
		t.Run(entry.Name, func(t *testing.T) {
			t.Parallel()
			test(newOperator(t, entry))
		})
	}
}

func newOperator(t *testing.T, entry registry.Entry) *operator {
	t.Helper()
	server, err := entry.Server(t.Context())
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	id := strings.ToLower(rand.Text()[:8])
	o := &operator{
		t: t, entry: entry, backend: entry.Open(server.URL, process.Logger()), topic: "orders" + id,
		app: pubsub.App{Group: "billing" + id, Prefix: "retry" + id, Lease: 3 * time.Second,
			Policy: retry.Policy{Schedule: backoff.Schedule{waits}}},
		first: map[string]*message.Message{}, handled: map[string]*message.Message{},
		url: server.URL,
	}
	if !strings.Contains(o.url, "://") {
		o.url = entry.Name + "://" + o.url
	}
	o.dead = o.backend.DeadTopic(o.app, o.topic)
	return o
}

var errDown, errStock = errors.New("the service is down"), errors.New("no stock of item 7")

// isOdd reports whether a message is permanently wrong.
func isOdd(id string) bool { return strings.Contains("13579", id[len(id)-1:]) }

func (o *operator) handle(msg *message.Message) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls++
	if o.first[msg.UUID] == nil {
		o.first[msg.UUID] = msg.Copy()
	}
	failure := o.failure.Load()
	switch {
	case failure != nil:
		return *failure
	case o.healthy.Load():
		o.handled[msg.UUID] = msg.Copy()
		return nil
	case isOdd(msg.UUID):
		return backoff.Permanent(errStock)
	default:
		return backoff.Permanent(errDown)
	}
}

// run runs the app until it is stopped.
func (o *operator) run() (stop func()) {
	o.t.Helper()
	connection, err := o.backend.Connect(o.app)
	require.NoError(o.t, err)
	router := message.NewDefaultRouter(watermill.NopLogger{})
	connection.AddConsumerHandler(router, "bill", o.topic, o.handle)
	_, err = process.Serve(context.Background(), router)
	require.NoError(o.t, err)
	stop = sync.OnceFunc(func() { _, _ = router.Close(), connection.Close() })
	o.t.Cleanup(stop)
	return stop
}

// publish publishes messages with Watermill's own publisher.
func (o *operator) publish(messages ...*message.Message) {
	o.t.Helper()
	publisher, err := o.backend.Publisher()
	require.NoError(o.t, err)
	require.NoError(o.t, publisher.Publish(o.topic, messages...))
	require.NoError(o.t, publisher.Close())
}

// result is what a command has printed, and its exit code.
type result struct {
	stdout, stderr string
	code           int
	memory         int // that it has had at most, in KiB, as far as the system shows it
}

// peakOf returns the most memory that a process has had, in KiB. That of the usage of an ended process has the memory of
// this one, which started it.
func peakOf(pid int) (peak int) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, value, _ := strings.Cut(string(status), "VmHWM:")
	_, _ = fmt.Sscan(value, &peak)
	return peak
}

// in runs the command in a folder, and requires an exit code. -1 is any.
func (o *operator) in(folder string, code int, args ...string) result {
	o.t.Helper()
	var stdout, stderr bytes.Buffer
	command := exec.Command(binary, slices.Insert(slices.Clone(args), 1, "--prefix", o.app.Prefix)...)
	command.Dir = folder
	command.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "AMQP_URL=") })
	command.Env = append(command.Env, "WMRETRY_URL="+o.url)
	command.Stdout, command.Stderr = &stdout, &stderr
	require.NoError(o.t, command.Start())
	ended, memory := make(chan error, 1), 0
	go func() { ended <- command.Wait() }()
	for running := true; running; {
		select {
		case <-ended:
			running = false
		case <-time.After(10 * time.Millisecond):
			memory = max(memory, peakOf(command.Process.Pid))
		}
	}
	r := result{stdout: stdout.String(), stderr: stderr.String(), code: command.ProcessState.ExitCode(), memory: memory}
	if code < 0 {
		return r
	}
	require.Equal(o.t, code, r.code, "wmretry %s\n%s\n%s", strings.Join(args, " "), r.stdout, r.stderr)
	return r
}

func (o *operator) wmretry(code int, args ...string) result {
	o.t.Helper()
	return o.in("", code, args...)
}

// letters runs a verb of dead on the letters of the app.
func (o *operator) letters(code int, verb string, args ...string) result {
	o.t.Helper()
	return o.wmretry(code, slices.Concat([]string{"dead", verb, o.topic}, args)...)
}

type summary struct {
	Total, Done, Other, Kept, Unseen, Redead, Doubtful int

	Error  string
	Causes []struct{ Reason string }
}

// summary runs a verb that changes letters, and returns its summary, which adds up.
func (o *operator) summary(code int, args ...string) summary {
	o.t.Helper()
	r := o.wmretry(code, append(args, "--json")...)
	var s summary
	require.NoError(o.t, json.Unmarshal([]byte(r.stdout), &s), r.stdout)
	assert.Equal(o.t, s.Total, s.Done+s.Other+s.Kept+s.Unseen, r.stdout)
	return s
}

func (o *operator) change(code int, verb string, args ...string) summary {
	o.t.Helper()
	return o.summary(code, slices.Concat([]string{"dead", verb, o.topic}, args)...)
}

// ids are those that list shows, sorted.
func (o *operator) ids(args ...string) (ids []string) {
	o.t.Helper()
	r := o.letters(0, "list", append(args, "--json")...)
	for decoder := json.NewDecoder(strings.NewReader(r.stdout)); decoder.More(); {
		var one struct{ ID string }
		require.NoError(o.t, decoder.Decode(&one), r.stdout)
		ids = append(ids, one.ID)
	}
	slices.Sort(ids)
	return ids
}

// awaitLetters waits until these letters are there.
func (o *operator) awaitLetters(want ...string) {
	o.t.Helper()
	store, err := o.backend.Letters(o.app)
	require.NoError(o.t, err)
	defer func() { assert.NoError(o.t, store.Close()) }()
	o.eventually("the letters are there", func() bool {
		var ids []string
		for letter, err := range store.Browse(context.Background(), o.dead, letters.Filter{}) {
			if err != nil {
				return false
			}
			ids = append(ids, letter.ID)
		}
		slices.Sort(ids)
		return slices.Equal(slices.Sorted(slices.Values(want)), slices.Compact(ids))
	})
}

func (o *operator) eventually(what string, is func() bool) {
	o.t.Helper()
	wait.Until(o.t, is, "%s", what)
}

// awaitHandled waits until the handler has handled these messages.
func (o *operator) awaitHandled(ids ...string) {
	o.t.Helper()
	o.eventually("the messages are handled", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return !slices.ContainsFunc(ids, func(id string) bool { return o.handled[id] == nil })
	})
}

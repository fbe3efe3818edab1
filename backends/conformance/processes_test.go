package conformance

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/process"
	"github.com/tieredretry/watermill-retry/backends/conformance/servers"
	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
)

// changes: two services have the same prefix, the same topic, and handlers of the same name. Each gets all messages.
// Those of one service fail twice. While they wait for the first time, two of its four processes stop, whose handlers
// have the names of their hosts. While they wait again, the handler of the others gets another name. The other service
// gets none of these retries. The lease is an hour: a message that a process still had when it ended would come then.
func changes(t *testing.T, f *fixture) {
	const messages = 500
	topics, billing := f.topics(1), f.app(5*time.Second, 4*time.Second)
	billing.Lease = time.Hour
	shipping, shipped := billing, newLedger()
	shipping.Group = "h" + f.name
	f.run(shipping, topics, shipped.failing(0))
	fails := len(billing.Policy.Schedule)
	f.cleanUp(billing, topics, nil)
	var roles []process.Role
	for host := range 4 {
		roles = append(roles, f.role(billing, topics, handlerName(host), 0))
		roles[host].Fails = fails
	}
	all := f.start(f.ledger, roles...)
	f.publishMany(topics, ids(messages))
	f.await(messages, 0)
	stopAll(all[:2])
	f.await(messages, 1)
	stopAll(all[2:])
	roles[0].Handlers[0].Name = "invoicing"
	f.start(f.ledger, roles[0])
	f.publish(topics, "last")
	f.comeBack(messages, fails, billing.Policy.Schedule)
	// the last message is not the last one that comes: messages of several partitions overtake each other
	shipped.await(t, messages+1, 0)
	assert.Len(t, shipped.all(), messages+1)
	assert.Zero(t, shipped.reached(1), "retries came to the other service")
}

// behind is how far the clock of a skewed process is behind.
const behind = 9 * time.Second

// skewedFolder has the program of a process whose clock is behind. TestMain removes it.
var skewedFolder string

// skewedProgram builds the program of a process whose time.Now is behind, with the -overlay of the go command.
var skewedProgram = sync.OnceValues(func() (program string, err error) {
	folder, err := os.MkdirTemp("", "conformance-skewed-")
	if err != nil {
		return "", err
	}
	skewedFolder = folder
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	source := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(source)
	if err != nil {
		return "", err
	}
	reads := regexp.MustCompile(`(?m)^func Now\(\) Time \{\n\tsec, nsec, mono := \w+\(\)\n`)
	if len(reads.FindAll(text, -1)) != 1 {
		return "", fmt.Errorf("%s does not read the clock as it did: change skewedProgram", source)
	}
	changed := filepath.Join(folder, "time.go")
	late := fmt.Appendf(nil, "${0}\tsec -= %d\n", int(behind.Seconds()))
	if err := os.WriteFile(changed, reads.ReplaceAll(text, late), 0o600); err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {source: changed}})
	if err != nil {
		return "", err
	}
	settings := filepath.Join(folder, "overlay.json")
	if err := os.WriteFile(settings, overlay, 0o600); err != nil {
		return "", err
	}
	program = filepath.Join(folder, "skewed")
	output, err := exec.Command("go", "build", "-overlay", settings, "-o", program, "./process/skewed").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("cannot build the program of a process whose clock is behind: %w: %s", err, output)
	}
	return program, nil
})

// crashed: two processes have failed messages that wait, and nothing is in flight. The clock of one of them is behind.
// After a crash of both and a start the retries come, none early: a message that such a process still had would come at
// the end of its lease.
func crashed(t *testing.T, f *fixture) {
	const messages = 100
	program, err := skewedProgram()
	require.NoError(t, err)
	for delay := behind + time.Second; ; delay *= 2 {
		topics, config := f.topics(1), f.app(delay)
		config.Lease = time.Hour
		f.cleanUp(config, topics, nil)
		f.ledger = newLedger()
		role := f.role(config, topics, "billing", 0)
		slow := f.startProgram(program, behind, f.ledger, role)
		slow.await(slow.running, "its handlers have not subscribed")
		other := f.start(f.ledger, role)[0]
		began := time.Now()
		f.publishMany(topics, ids(messages))
		f.eventually("the copies are safe", func() bool { return slow.retried.Load()+other.retried.Load() >= messages })
		for _, one := range f.ledger.first(0) {
			require.False(t, one.at.After(time.Now()), "the clock of the process must be behind by %v", behind)
		}
		slow.Kill()
		other.Kill()
		if time.Since(began) > delay { // a retry can be in flight: a slow machine needs a longer delay
			f.name += "-again"
			continue
		}
		f.start(f.ledger, role)
		f.await(messages, 1)
		if !f.Expect.Relayed { // a relay compares the clocks of hosts
			f.ledger.neverEarly(t, f.Expect.Clock, config.Policy.Schedule...)
		}
		return
	}
}

// busy lets two backends at a time run the cases with most messages: they need a core each.
var busy = make(chan struct{}, 2)

// killed: processes die before a copy is published, after it is safe, and at any time. No message is lost.
func killed(t *testing.T, f *fixture) {
	busy <- struct{}{}
	defer func() { <-busy }()
	const messages = 800
	topics, app := f.topics(1), f.app(time.Second)
	f.cleanUp(app, topics, nil)
	role := f.role(app, topics, "billing", 0)
	stopAll(f.start(f.ledger, role)) // now the consumer groups exist
	f.publishMany(topics, ids(messages))
	for _, death := range []process.Role{{Die: process.Failed, Nth: 1}, {Die: process.Retried, Nth: 40}} {
		victim := role
		victim.Die, victim.Nth = death.Die, death.Nth
		f.startProgram("", 0, f.ledger, victim).dies()
	}
	both := f.start(f.ledger, role, role)
	for i, share := range []int{4, 2} {
		f.eventually("some are handled", func() bool { return f.ledger.reached(1) >= messages/share/2 })
		both[i].Kill()
		both = append(both, f.start(f.ledger, role)...)
	}
	f.comeBack(messages, 1, app.Policy.Schedule)
}

// serverKilled: the connections to the server are closed again and again, and it is killed twice, while messages fail and
// come back. No message is lost, and what is due while the server is away comes when it is back.
func serverKilled(t *testing.T, f *fixture) {
	if f.Start == nil {
		return // make chaos kills RabbitMQ
	}
	busy <- struct{}{}
	defer func() { <-busy }()
	server := startServer(t, f.Entry)
	if server.Restart == nil {
		return // it was not started here
	}
	f = newFixture(t, f.Entry, server.URL)
	const messages, delay = 800, time.Second
	topics, app := f.topics(1), f.app(delay)
	app.Policy.MaxHold = time.Minute
	a := f.run(app, topics, f.ledger.failing(1))
	t.Cleanup(func() {
		if t.Failed() {
			left, err := f.backend.Left(noContext, app, topics)
			t.Logf("%d were tried, %d came back; left on the server: %d, %v", f.ledger.reached(0), f.ledger.reached(1),
				left, err)
		}
	})
	f.publishMany(topics, ids(messages)[:messages/2])
	var published sync.WaitGroup
	published.Go(func() { // and the app publishes until the server has it
		for _, id := range ids(messages)[messages/2:] {
			wait.Until(t, func() bool {
				return a.Publisher().Publish(topics[0], message.NewMessage(id, nil)) == nil
			}, "it is published")
		}
	})
	for i, share := range []int{8, 2} {
		if f.Name == "redis" {
			require.NoError(t, servers.RedisWritesAtOnce(t.Context(), f.url))
		}
		f.cutUntil("some are handled", func() bool { return f.ledger.reached(1) >= messages/share })
		if i == 0 {
			server.Kill()
			away := delay // what waits is due then
			if f.Name == "nats" {
				away += 2500 * time.Millisecond // a process reserves a subject for a message no longer
			}
			time.Sleep(away)
		}
		require.NoError(t, server.Restart(t.Context()))
	}
	published.Wait()
	f.comeBack(messages, 1, app.Policy.Schedule)
	f.nothingIsLeft(app, topics)
}

// unreadable: while the server is away, Health names each topic that cannot be read, with the reason.
func unreadable(t *testing.T, f *fixture) {
	if f.Start == nil {
		return // RabbitMQ has connections in its Health
	}
	server := startServer(t, f.Entry)
	if server.Kill == nil {
		return // it was not started here
	}
	f = newFixture(t, f.Entry, server.URL)
	topics, app := f.topics(1), f.app(time.Second)
	a := f.run(app, topics, f.ledger.failing(1))
	f.publish(topics, "1")
	f.await(1, 1)
	require.NoError(t, a.Health().Ready())
	server.Kill()
	names := relaytopic.Names{Prefix: app.Prefix}
	var err error
	f.eventually("each topic is named", func() bool {
		err = a.Health().Ready()
		return err != nil && strings.Contains(err.Error(), fmt.Sprintf("cannot read %q: ", topics[0])) &&
			strings.Contains(err.Error(), fmt.Sprintf("cannot read %q: ", names.Return(relaytopic.Key(app.Group, topics[0])))) &&
			(!f.Expect.Relayed || strings.Contains(err.Error(), `handler "tier 1s" does not consume `))
	})
	t.Log(err)
	require.NoError(t, server.Restart(t.Context()))
	f.eventually("all is read again", func() bool { return a.Health().Ready() == nil })
	f.publish(topics, "2")
	f.await(2, 1)
}

// longNames: names of 64 and of 200 bytes that differ only at their end, and names that are the same when they are
// joined. Each message and each retry comes to its own handler.
func longNames(t *testing.T, f *fixture) {
	long := func(length int, end string) string { return strings.Repeat("n", length-len(end)) + end }
	type pair struct{ group, topic string }
	sizes := []int{64, 200}
	if f.Expect.Tiers {
		sizes = sizes[:1] // the name of a queue has group, topic and tier, and at most 255 bytes
	}
	pairs := []pair{{f.name + ".a", "b" + f.name}, {f.name, "a.b" + f.name}}
	for _, size := range sizes {
		topic := size
		if f.Expect.LongestTopic > 0 {
			topic = min(size, f.Expect.LongestTopic)
		}
		for _, end := range []string{"-1", "-2"} {
			for _, other := range []string{"-3", "-4"} {
				pairs = append(pairs, pair{long(size, f.name+end), long(topic, f.name+other)})
			}
		}
	}
	const messages = 5
	app := f.app(500 * time.Millisecond)
	seen := make([]*ledger, len(pairs)) // what the handler of each group and topic has handled
	topics, wrong := map[string]bool{}, atomic.Int64{}
	for i, p := range pairs {
		app.Group, seen[i], topics[p.topic] = p.group, newLedger(), true
		fails := fmt.Errorf("group %d fails", i)
		f.connect(app, []string{p.topic}, nil).handle(long(200, fmt.Sprint(i)), p.topic, func(msg *message.Message) error {
			one := seen[i].add(msg)
			if string(msg.Payload) != p.topic {
				wrong.Add(1)
			}
			if one.failures == 0 {
				return fails
			}
			if one.record.Topic != p.topic || one.record.Reason != fails.Error() {
				wrong.Add(1)
			}
			return nil
		}).run()
	}
	publisher, err := f.backend.Publisher()
	require.NoError(t, err)
	defer func() { require.NoError(t, publisher.Close()) }()
	for topic := range topics {
		for _, id := range ids(messages) {
			require.NoError(t, publisher.Publish(topic, message.NewMessage(id, []byte(topic))))
		}
	}
	for _, one := range seen {
		one.await(t, messages, 1)
	}
	assert.Zero(t, wrong.Load(), "deliveries to the wrong handler")
}

package adopt

import (
	"bufio"
	"bytes"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
)

// program is what the page leaves out: a handler that fails for some orders while the bank is down, and a main function.
const program = `package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/retry"
)

var _, _, _, _, _ = middleware.PoisonQueue, backoff.Exponential, config.Connect, retry.Options{}, time.Second

func bill(msg *message.Message) error {
	if _, err := os.Stat(os.Getenv("DOWN")); err == nil && strings.HasPrefix(msg.UUID, "later") {
		return errors.New("the bank is down")
	}
	_, err := fmt.Println(msg.UUID)
	return err
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	logger := watermill.NewStdLogger(false, false)
	app := amqp.NewDurableQueueConfig(os.Getenv("AMQP_URL"))
	router := message.NewDefaultRouter(logger)
	CODE
	go func() {
		<-router.Running()
		fmt.Println("running")
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	check(router.Run(ctx))
	LAST
}
`

// newcomer does what "From Watermill's Retry and PoisonQueue" has, word by word: on a virtual host, with the names of the page.
type newcomer struct {
	t            *testing.T
	folder, down string
	host         string
	environment  []string
	commands     []string // of the page, which are still to be run
	channel      *amqp091.Channel
	sent         int
	billed       *testapp.Ledger
}

// TestNewcomerFollowsThePage deploys programs made of the page's Go code in the order of its steps, with the way back of each step,
// and runs its commands. The retries of the old app wait for 10 ms in place of 1 s.
func TestNewcomerFollowsThePage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/adopting.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(text), "\n## From Watermill's Retry and PoisonQueue\n")
	section, _, _ = strings.Cut(section, "\n## ")
	n := newNewcomer(t, section)

	before := n.deploy("today")
	n.send()
	n.awaitPoisoned(0)

	// Step 1: the poison queue exists. The subscriber is that of Connect.
	assert.Contains(t, n.run("rabbitmqctl list_queues"), "orders.poison")
	first := n.replace(before, "step1")
	n.send()
	before = n.replace(first, "today") // the way back
	n.send()
	first = n.replace(before, "step1")

	// Step 2: the middleware.
	second := n.replace(first, "step2")
	n.send()
	n.await("orders.retry.1s", func(depth int) bool { return depth > 0 })
	first = n.replace(second, "step1") // the way back, while messages wait on tiers
	n.awaitPoisoned(0)
	second = n.replace(first, "step2")

	// Step 3: the letters of the poison queue. The bank is there again.
	poisoned := n.depth("orders.poison")
	assert.Contains(t, n.run("wmretry dead list"), "the bank is down")
	require.NoError(t, os.Remove(n.down))
	assert.Contains(t, n.run("wmretry dead redrive"), fmt.Sprintf("%d  sent back, confirmed and removed", poisoned))
	n.billed.Wait(t, n.sent, patience)

	// Step 4: the poison queue goes.
	second = n.replace(second, "step2") // one more deployment
	n.run("rabbitmqctl delete_queue")
	n.declare("orders.poison") // the way back
	first = n.replace(second, "step1")
	n.send()
	n.replace(first, "step2")()

	assert.Empty(t, n.commands, "commands of the page that the test does not run")
	n.billed.Wait(t, n.sent, patience)
	assert.Equal(t, n.sent, n.billed.Len())
	assert.LessOrEqual(t, len(n.billed.Twice()), 8, "at most the message in flight of each instance that stopped")
	t.Logf("published=processed=%d twice=%d", n.sent, len(n.billed.Twice()))
}

func newNewcomer(t *testing.T, section string) *newcomer {
	t.Helper()
	uri, remove, err := broker.Host(broker.Management(t), broker.URL(t), "newcomer")
	require.NoError(t, err)
	t.Cleanup(func() { _ = remove() })
	address, err := url.Parse(uri)
	require.NoError(t, err)
	n := &newcomer{t: t, folder: t.TempDir(), host: strings.TrimPrefix(address.Path, "/"), billed: testapp.NewLedger()}
	n.down = filepath.Join(n.folder, "down")
	require.NoError(t, os.WriteFile(n.down, nil, 0o600))
	n.environment = append(os.Environ(), "AMQP_URL="+uri, "DOWN="+n.down, "PATH="+n.folder+string(os.PathListSeparator)+os.Getenv("PATH"))
	connection, err := amqp091.Dial(uri)
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	n.channel, err = connection.Channel()
	require.NoError(t, err)
	require.NoError(t, n.channel.Confirm(false))
	n.declare("orders.poison")
	n.declare("orders")
	for _, command := range regexp.MustCompile("`((?:rabbitmqctl|wmretry)\\s[^`]+)`").FindAllStringSubmatch(section, -1) {
		n.commands = append(n.commands, strings.Join(strings.Fields(command[1]), " "))
	}
	n.build(section)
	return n
}

// build builds wmretry, and the three programs.
func (n *newcomer) build(section string) {
	n.t.Helper()
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(section, -1)
	require.Len(n.t, blocks, 4)
	today, connect, step1, step2 := blocks[0][1], blocks[1][1], blocks[2][1], blocks[3][1]
	require.Contains(n.t, today, "InitialInterval: time.Second")
	today = strings.Replace(today, "InitialInterval: time.Second", "InitialInterval: 10 * time.Millisecond", 1)
	middlewares, _, found := strings.Cut(today, "router.AddConsumerHandler(")
	require.True(n.t, found)
	const publisher, subscriber = "publisher, err := amqp.NewPublisher(app, logger)\ncheck(err)\n",
		"subscriber, err := amqp.NewSubscriber(app, logger)\ncheck(err)\n"
	connect += "check(err)\n"
	root, err := filepath.Abs("../..")
	require.NoError(n.t, err)
	source := filepath.Join(n.folder, "source")
	for name, code := range map[string][2]string{
		"today": {publisher + subscriber + today},
		"step1": {publisher + connect + middlewares + step1, "check(rabbit.Close())"},
		"step2": {connect + step2, "check(rabbit.Close())"},
	} {
		require.NoError(n.t, os.MkdirAll(filepath.Join(source, name), 0o755))
		text := strings.NewReplacer("CODE", code[0], "LAST", code[1]).Replace(program)
		require.NoError(n.t, os.WriteFile(filepath.Join(source, name, "main.go"), []byte(text), 0o600))
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(filepath.Join(root, name))
		require.NoError(n.t, err)
		require.NoError(n.t, os.WriteFile(filepath.Join(source, name), content, 0o600))
	}
	const module = "github.com/tieredretry/watermill-retry"
	for _, arguments := range [][]string{
		{"mod", "edit", "-C", source, "-module=example.test/app", "-require=" + module + "@v0.0.0", "-replace=" + module + "=" + root},
		{"build", "-C", source, "-o", n.folder, "./..."},
		{"build", "-C", filepath.Join(root, "cmd/wmretry"), "-o", filepath.Join(n.folder, "wmretry"), "."},
	} {
		output, err := exec.Command("go", arguments...).CombinedOutput()
		require.NoError(n.t, err, "%s", output)
	}
}

func (n *newcomer) declare(queue string) {
	n.t.Helper()
	_, err := n.channel.QueueDeclare(queue, true, false, false, false, nil)
	require.NoError(n.t, err)
}

// deploy starts a program, and returns what stops it.
func (n *newcomer) deploy(name string) (stop func()) {
	n.t.Helper()
	command := exec.Command(filepath.Join(n.folder, name))
	command.Env = n.environment
	var log bytes.Buffer
	command.Stderr = &log
	output, err := command.StdoutPipe()
	require.NoError(n.t, err)
	require.NoError(n.t, command.Start())
	running, ended := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			if lines.Text() == "running" {
				running <- struct{}{}
				continue
			}
			n.billed.Add(lines.Text())
		}
	}()
	stop = sync.OnceFunc(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		<-ended
		assert.NoError(n.t, command.Wait(), "%s: %s", name, &log)
	})
	n.t.Cleanup(stop)
	broker.Receive(n.t, running, name+" runs")
	return stop
}

// replace deploys a program in the place of another one. Both run for a while.
func (n *newcomer) replace(stop func(), name string) func() {
	n.t.Helper()
	next := n.deploy(name)
	stop()
	return next
}

// send publishes orders, two of which fail while the bank is down, and waits until the others are billed.
func (n *newcomer) send() {
	n.t.Helper()
	others := n.sent
	for i := range 20 {
		n.sent++
		name := "now"
		if i%10 == 0 {
			name = "later"
		}
		id := fmt.Sprintf("%s %d", name, n.sent)
		msg, err := (&deployment{t: n.t}).publishing(id)
		require.NoError(n.t, err)
		confirm, err := n.channel.PublishWithDeferredConfirm("", "orders", true, false, msg)
		require.NoError(n.t, err)
		require.True(n.t, confirm.Wait())
	}
	n.billed.Wait(n.t, others/10*9+18, patience)
}

// run runs the next command of the page, which begins with these words, and returns what it prints.
func (n *newcomer) run(begins string) string {
	n.t.Helper()
	require.NotEmpty(n.t, n.commands, begins)
	line := n.commands[0]
	n.commands = n.commands[1:]
	require.True(n.t, strings.HasPrefix(line, begins), "the page has %s in place of %s", line, begins)
	if words, isCtl := strings.CutPrefix(line, "rabbitmqctl "); isCtl {
		line = "$BROKER_CTL " + words + " -p " + n.host
	}
	command := exec.Command("sh", "-c", line)
	command.Env = n.environment
	output, err := command.CombinedOutput()
	require.NoError(n.t, err, "%s: %s", line, output)
	return string(output)
}

func (n *newcomer) depth(queue string) int {
	n.t.Helper()
	found, err := n.channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(n.t, err)
	return found.Messages
}

func (n *newcomer) await(queue string, is func(depth int) bool) {
	n.t.Helper()
	broker.Eventually(n.t, patience, func() bool { return is(n.depth(queue)) }, "messages on %s", queue)
}

// awaitPoisoned waits until more messages than these are poisoned.
func (n *newcomer) awaitPoisoned(before int) {
	n.t.Helper()
	n.await("orders.poison", func(depth int) bool { return depth > before })
}

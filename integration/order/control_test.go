package order_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/tools/child"
)

// An operator calls wmretry order.
type operator struct {
	*world
	program string
	url     string      // of the command
	broken  atomic.Bool // the second message of customer-1 cannot be handled
}

// wmretry builds the command, once for all tests.
var wmretry = sync.OnceValue(func() error { return child.Build("../../cmd/wmretry", filepath.Join(folder, "wmretry")) })

func newOperator(t *testing.T) *operator {
	t.Helper()
	o := &operator{world: newWorld(t), program: filepath.Join(folder, "wmretry"), url: broker.URL(t)}
	require.NoError(t, wmretry())
	o.broken.Store(true)
	return o
}

// page starts wmretry ui, and returns its address.
func (o *operator) page() string {
	o.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	c := exec.CommandContext(ctx, o.program, "ui", "--listen", "127.0.0.1:0", "--prefix", o.config.Prefix, o.queue)
	c.Env = append(c.Environ(), "AMQP_URL="+o.url)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	stdout, err := c.StdoutPipe()
	require.NoError(o.t, err)
	require.NoError(o.t, c.Start())
	o.t.Cleanup(func() { stop(); _ = c.Wait() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(o.t, err)
	address := regexp.MustCompile(`http://\S+`).FindString(line)
	require.NotEmpty(o.t, address, line)
	return address
}

func (o *operator) open(address string) string {
	o.t.Helper()
	request, err := http.NewRequestWithContext(o.t.Context(), http.MethodGet, address, http.NoBody)
	require.NoError(o.t, err)
	request.Header.Set("Sec-Fetch-Site", "same-origin") // as a browser after a click on the page
	answer, err := http.DefaultClient.Do(request)
	require.NoError(o.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(o.t, err)
	require.Equal(o.t, http.StatusOK, answer.StatusCode, "%s", text)
	return string(text)
}

func (o *operator) startBlocking() *app {
	o.t.Helper()
	return o.start(retry.Options{Order: retry.Order{Block: true}}, o.handle)
}

func (o *operator) handle(msg *message.Message) error {
	var b body
	if err := json.Unmarshal(msg.Payload, &b); err != nil {
		return err
	}
	if b.Key == "customer-1" && b.Number == 1 && o.broken.Load() {
		return backoff.Permanent(errDown)
	}
	return o.sink.handle(msg)
}

// order runs the command.
func (o *operator) order(code int, do string, arguments ...string) (stdout, stderr string) {
	o.t.Helper()
	ended, stdout, stderr := o.run(do, arguments...)
	require.Equal(o.t, code, ended, "%s\n%s", stdout, stderr)
	return stdout, stderr
}

// decide runs the command until a message was blocked: another process may just get its partition.
func (o *operator) decide(do string) (stdout string) {
	o.t.Helper()
	testapp.Eventually(o.t, func() (done bool) {
		code, said, _ := o.run(do, "customer-1")
		stdout = said
		return code == 0
	}, "order %s", do)
	return stdout
}

func (o *operator) run(do string, arguments ...string) (code int, stdout, stderr string) {
	c := exec.Command(o.program, append([]string{"order", do, o.queue, "--prefix", o.config.Prefix}, arguments...)...)
	c.Env = append(c.Environ(), "AMQP_URL="+o.url)
	var out, problems bytes.Buffer
	c.Stdout, c.Stderr = &out, &problems
	_ = c.Run()
	return c.ProcessState.ExitCode(), out.String(), problems.String()
}

// blocked are the messages that the command shows.
func (o *operator) blocked() (all []command.Blocked) {
	o.t.Helper()
	shown, _ := o.order(0, "status", "--json")
	var status struct {
		Processes int
		Answers   []command.Answer
	}
	require.NoError(o.t, json.Unmarshal([]byte(shown), &status))
	if status.Processes > 0 { // the management API needs a tag
		require.Equal(o.t, status.Processes, len(status.Answers), "all processes answer")
	}
	for _, a := range status.Answers {
		for _, h := range a.Handlers {
			require.Equal(o.t, "billing", h.Name)
			require.Len(o.t, h.Partitions, 5)
			for _, p := range h.Partitions {
				all = append(all, p.Blocked...)
			}
		}
	}
	return all
}

func (o *operator) awaitBlocked() command.Blocked {
	o.t.Helper()
	var all []command.Blocked
	testapp.Eventually(o.t, func() bool { all = o.blocked(); return len(all) == 1 }, "the key of customer-1 is blocked")
	assert.Equal(o.t, "customer-1", all[0].Key)
	assert.Equal(o.t, retry.DeadReasonPermanent, all[0].DeadReason)
	assert.Contains(o.t, all[0].Reason, errDown.Error())
	assert.False(o.t, all[0].Since.IsZero())
	return all[0]
}

func TestABlockedKeyWaitsForAnOperator(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	a, b := o.startBlocking(), o.startBlocking()
	all := messages(4, 20, never)
	o.publish(a, all)
	testapp.Eventually(t, func() bool { return o.sink.count() == 3*20+1 }, "all but those of customer-1 are handled")
	first := o.awaitBlocked()
	is := func(waiting int, blocked ...string) bool {
		x, y := a.Health().Subscriptions[0], b.Health().Subscriptions[0]
		return max(x.OrderWaiting, y.OrderWaiting) == waiting && slices.Equal(append(x.Blocked, y.Blocked...), blocked)
	}
	testapp.Eventually(t, func() bool { return is(1+20-2, "customer-1") }, "it is counted with those behind it")
	testapp.Eventually(t, func() bool {
		shown, problems := o.order(0, "status")
		return problems == "" && !slices.ContainsFunc([]string{o.queue + ".order.3", "customer-1", "permanent: ", first.MessageUUID,
			"wmretry order retry " + o.queue}, func(part string) bool { return !strings.Contains(shown, part) })
	}, "it is shown")
	_, problems := o.order(1, "retry", "customer-\x1b[2J2")
	assert.Contains(t, problems, "is blocked")
	assert.NotContains(t, problems, "\x1b")

	o.decide("retry")
	testapp.Eventually(t, func() bool {
		all := o.blocked()
		return len(all) == 1 && all[0].Since.After(first.Since)
	}, "it fails again, and is blocked again")

	o.broken.Store(false)
	assert.Equal(t, "1 message is handled again\n", o.decide("retry"))
	testapp.Eventually(t, func() bool { return o.sink.count() == len(all) }, "those behind it follow")
	o.sink.inOrder(t)
	assert.Zero(t, o.sink.rewinds)
	assert.True(t, is(0), "nothing waits")
	_, problems = o.order(1, "skip", "customer-1")
	assert.Contains(t, problems, "is blocked")
	o.settled(4)
	assert.Zero(t, testapp.Depth(t, o.queue+".dead"))
}

func TestASkippedMessageIsADeadLetter(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	a := o.startBlocking()
	all := messages(2, 20, never)
	o.publish(a, all)
	testapp.Eventually(t, func() bool { return o.sink.count() == 20+1 }, "all but those of customer-1 are handled")
	o.awaitBlocked()
	a.stop()

	b := o.startBlocking()
	blocked := o.awaitBlocked() // it is not known any more that it was
	require.Equal(t, all[3].UUID, blocked.MessageUUID)
	view := o.page() + "order?queue=" + o.queue
	for _, text := range []string{"1 process has answered.", "customer-1", blocked.MessageUUID, errDown.Error()} {
		assert.Contains(t, o.open(view), text)
	}
	o.sink.skip("customer-1", 1)
	assert.Equal(t, "1 message is skipped: dead letters of "+o.queue+"\n", o.decide("skip"))
	letter := testapp.Take(t, o.queue+".dead", 1)[0]
	record := message.Metadata{}
	for key, value := range letter.Headers {
		if text, is := value.(string); is {
			record[key] = text
		}
	}
	read, _ := retry.ReadRecord(record)
	assert.Equal(t, 1, read.Failures)
	assert.Equal(t, retry.DeadReasonPermanent, read.DeadReason)
	assert.Contains(t, read.Reason, errDown.Error())
	testapp.Eventually(t, func() bool { return o.sink.count() == len(all)-1 }, "those behind it follow")
	assert.Contains(t, o.open(view), "The processes that have answered have no blocked key.")
	o.sink.inOrder(t)
	o.settled(4)
	assert.Len(t, b.Events(retry.DeadLettered), 1)
}

func TestHostileCommands(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	a := o.startBlocking()
	channel := broker.Channel(t)
	answers, err := channel.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil)
	require.NoError(t, err)
	ask := func(replyTo, text string) {
		require.NoError(t, channel.PublishWithContext(t.Context(), o.config.Prefix+".order", "", true, false, amqp091.Publishing{
			ReplyTo: replyTo, CorrelationId: "it", Body: []byte(text),
		}))
	}
	ask("", `{"queue":"`+o.queue+`","do":"status"}`)
	ask(o.queue, `{"queue":"`+o.queue+`","do":"status"}`) // an answer is not a message of the handler
	for _, text := range []string{
		"", "no JSON", "[]", "{}", `{"queue":7}`, `{"queue":"` + o.queue + `","do":"purge"}`, `{"do":"skip","key":"customer-1"}`,
		strings.Repeat("[", 60_000), `{"queue":"` + strings.Repeat("x", 100_000) + `","do":"status"}`,
	} {
		ask("amq.rabbitmq.reply-to", text)
		d := broker.Receive(t, answers, "the answer")
		var answer command.Answer
		require.NoError(t, json.Unmarshal(d.Body, &answer))
		assert.Equal(t, "it", d.CorrelationId)
		assert.NotEmpty(t, answer.Error, "%.50s", text)
		assert.Less(t, len(d.Body), 1000)
		assert.Empty(t, answer.Handlers)
	}
	ask("amq.rabbitmq.reply-to", `{"queue":"`+o.queue+`","do":"status","more":[1]}`)
	var answer command.Answer
	require.NoError(t, json.Unmarshal(broker.Receive(t, answers, "the answer").Body, &answer))
	assert.Len(t, answer.Handlers, 1)
	assert.Zero(t, testapp.Depth(t, o.queue))
	assert.Zero(t, a.Health().Subscriptions[0].Deliveries)
	_, problems := o.order(1, "status", "--prefix", "other-"+o.config.Prefix)
	assert.Contains(t, problems, "no process")
}

// TestPermissionsOfTheControl has those of docs/operations.md, in addition, and of docs/dead-letters.md.
func TestPermissionsOfTheControl(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	queue, prefix := o.queue, o.config.Prefix
	first := o.startBlocking()
	o.publish(first, messages(2, 2, never))
	o.awaitBlocked()
	first.stop()
	plain := "(" + queue + `(\.dead)?|` + prefix + `(\.return(\.any)?|\.orphans)?`
	names := "^" + plain + "|(" + queue + "|" + prefix + `)\.order(\..*)?)$`
	as := func(configure, write, read string) string {
		user := broker.User(t, configure, write, read)
		return broker.WithUser(t, user, user)
	}

	o.config.AMQP.Connection.AmqpURI = as("^$", names, names)
	o.config.VerifyOnly = true
	verifying := o.startBlocking()
	testapp.Eventually(t, func() bool {
		return len(verifying.Events(retry.Blocked)) == 1
	},
		"an app that may not declare handles messages")
	testapp.Eventually(t, func() bool { return verifying.Log.Count("Cannot consume the commands of wmretry order") == 1 }, "that is logged")
	_, problems := o.order(1, "status", "--wait", "1s")
	assert.Contains(t, problems, "no process")
	verifying.stop()

	o.config.AMQP.Connection.AmqpURI = as(names, "^(amq\\.default|"+names[1:len(names)-1]+")$", names)
	o.config.VerifyOnly = false
	o.startBlocking()
	o.url = as("^$", "^"+prefix+`\.order$`, "^$")
	o.awaitBlocked()
	o.sink.skip("customer-1", 1)
	o.decide("skip")
	testapp.Take(t, o.queue+".dead", 1)
}

package workqueue

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// silent is the version of a broker that opens no channel.
type silent string

var errNoChannel = errors.New("no channel")

func (silent) Channel() (*amqp091.Channel, error) { return nil, errNoChannel }

func (silent) Publishing(context.Context) (*amqp091.Channel, error) { return nil, errNoChannel }

func (silent) Blocked() bool { return false }

func (v silent) Version() string { return string(v) }

// TestRiskyBrokerIsWarnedAboutOnce also where nothing is declared.
func TestRiskyBrokerIsWarnedAboutOnce(t *testing.T) {
	config := topology.Config{Tiers: backoff.Schedule{time.Second}.Tiers()}
	for way, look := range map[string]func(*Inspector, Broker, topology.Queue, watermill.LoggerAdapter) error{
		"verifies": func(i *Inspector, b Broker, app topology.Queue, logs watermill.LoggerAdapter) error {
			return i.Check(b, config, app, logs)
		},
		"declares": func(i *Inspector, b Broker, app topology.Queue, logs watermill.LoggerAdapter) error {
			_, err := i.Inspect(b, config, app, logs)
			return err
		},
	} {
		for name, row := range map[string]struct {
			tiers   topology.QueueType
			version silent
			want    int
		}{
			"safe":          {topology.Quorum, "4.3.6", 0},
			"cycle bug":     {topology.Quorum, "3.13.1", 1},
			"classic tiers": {topology.Classic, "3.10.8", 1},
			"both":          {topology.Classic, "3.13.1", 2},
		} {
			t.Run(way+", "+name, func(t *testing.T) {
				logs := watermill.NewCaptureLogger()
				i := New(Config{QueueType: row.tiers})
				for range 3 {
					require.ErrorIs(t, look(i, row.version, topology.Queue{Name: "orders", Durable: true}, logs), errNoChannel)
				}
				assert.Len(t, logs.Captured()[watermill.ErrorLogLevel], row.want)
				assert.Empty(t, logs.Captured()[watermill.InfoLogLevel], "a filter for warnings would miss it")
			})
		}
		transient := topology.Queue{Name: "orders"}
		err := look(New(Config{}), silent("4.3.0"), transient, watermill.NopLogger{})
		require.ErrorIs(t, err, topology.ErrTransientQueue)
		assert.ErrorContains(t, err, "orders")
		require.ErrorIs(t, look(New(Config{}), silent("4.2.0"), transient, watermill.NopLogger{}), errNoChannel)
	}
}

// An app's own dead-letter exchange is no prefix. A work queue with reject-publish and no limit is never full.
func TestAQueueIsWarnedAboutOnce(t *testing.T) {
	earlier := topology.New(topology.Config{Tiers: backoff.Constant(time.Second, 1).Tiers(), Prefix: "old"}, topology.Queue{Name: "orders", Durable: true}).WorkQueue
	refuses := amqp091.Table{"x-overflow": "reject-publish", "x-dead-letter-exchange": "dead"}
	full := amqp091.Table{"x-overflow": "reject-publish", "x-max-length": int64(10), "x-dead-letter-exchange": "dead"}
	for name, row := range map[string]struct {
		app, have amqp091.Table
		want      []string // parts of the warning
	}{
		"another prefix": {nil, earlier.Arguments, []string{
			`work queue "orders" was declared with the Prefix "old", and now has the Prefix "retry" too`, `set Prefix to "old"`}},
		"the app's own exchange": {earlier.Arguments, earlier.Arguments, nil},
		"never full":             {refuses, refuses, nil},
		"no dead-letter exchange": {nil, nil, []string{
			`work queue "orders" has no dead-letter exchange`, "the app cannot see policies", "rabbitmqctl set_policy"}},
		"full": {full, full, []string{`work queue "orders" refuses messages while it is full`}},
	} {
		logs, i := watermill.NewCaptureLogger(), New(Config{Prefix: "retry"})
		for range 2 {
			require.NoError(t, i.checkQueue(topology.Queue{Name: "orders", Durable: true, Arguments: row.app}, row.have, parseVersion("4.3.6"), logs))
		}
		warnings := logs.Captured()[watermill.ErrorLogLevel]
		require.Len(t, warnings, min(1, len(row.want)), name)
		for _, part := range row.want {
			assert.Contains(t, warnings[0].Msg, part)
		}
	}
	_, differs := OtherPrefix(topology.Queue{Name: "orders"}, earlier.Arguments, "old")
	assert.False(t, differs)
}

// TestAStreamIsRefused with what to do, on each broker.
func TestAStreamIsRefused(t *testing.T) {
	for _, version := range []string{"3.10.8", "4.0.5", "4.3.6"} {
		i := New(Config{AllowUnprotectedQuorum: true})
		have := amqp091.Table{"x-queue-type": "stream", "x-max-age": "7D"}
		err := i.checkQueue(topology.Queue{Name: "orders", Durable: true, Arguments: amqp091.Table{"x-max-age": "7D"}}, have,
			parseVersion(version), watermill.NopLogger{})
		require.ErrorIs(t, err, ErrStream)
		assert.ErrorContains(t, err, `"orders"`)
		assert.ErrorContains(t, err, "AMQP.Queue.GenerateName")
	}
}

// TestADeclarationIsRepeatedWhileAQueueIsAbsent: the text is that of RabbitMQ 4.0.5 while another client declares the queue.
func TestADeclarationIsRepeatedWhileAQueueIsAbsent(t *testing.T) {
	missing := &amqp091.Error{Code: amqp091.NotFound, Server: true, Reason: "NOT_FOUND - no queue 'orders.dead' in vhost '/'"}
	absent := &amqp091.Error{Code: amqp091.NotFound, Server: true, Reason: "NOT_FOUND - home node 'rabbit@localhost' of durable queue " +
		"'orders.dead' in vhost '/' is down or inaccessible"}
	for name, row := range map[string]struct {
		answers []error // the last one is repeated
		want    error
		longest time.Duration
	}{
		"for an instant":   {[]error{absent, absent, nil}, nil, 100 * time.Millisecond},
		"its node is down": {[]error{absent}, absent, 1200 * time.Millisecond},
		"another error":    {[]error{missing, nil}, missing, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin, calls := time.Now(), 0
				err := whileAbsent(func() error {
					calls++
					return row.answers[min(calls, len(row.answers))-1]
				})
				assert.Equal(t, row.want, err)
				assert.LessOrEqual(t, time.Since(begin), row.longest)
			})
		})
	}
}

func TestLimitOfDeadLettersIsWarnedAboutOnce(t *testing.T) {
	logs := watermill.NewCaptureLogger()
	i := New(Config{DeadLetters: topology.Retention{MaxLength: 10}})
	for _, queue := range []string{"orders", "mails", "orders"} {
		require.NoError(t, i.checkBroker(topology.Queue{Name: queue, Durable: true}, parseVersion("4.3.6"), logs))
	}
	warnings := logs.Captured()[watermill.ErrorLogLevel]
	require.Len(t, warnings, 1)
	assert.Contains(t, warnings[0].Msg, "DeadLetters has a limit (MaxLength 10): the broker drops the oldest dead letters")
}

func TestVersionRules(t *testing.T) {
	for text, want := range map[string]struct{ drops, transient, cycles, stops bool }{
		"3.10.8":     {},
		"3.12.14":    {},
		"3.13.0":     {cycles: true},
		"3.13.2":     {cycles: true},
		"3.13.3":     {},
		"4.0.5":      {drops: true},
		"4.2.9":      {drops: true},
		"4.3":        {transient: true, stops: true},
		"4.3.0-rc.1": {transient: true, stops: true},
		"4.3.0":      {transient: true, stops: true},
		"4.3.5":      {transient: true, stops: true},
		"4.3.6":      {transient: true},
		"4.3.10":     {transient: true},
		"4.4.0":      {transient: true},
		"4.4.1":      {transient: true},
		"4.10.0":     {transient: true},
		"5.0.0":      {transient: true},
		"":           {},
		"latest":     {},
	} {
		v := parseVersion(text)
		assert.Equal(t, want.drops, v.dropsAtDeliveryLimit(), "%s drops at the delivery limit", text)
		assert.Equal(t, want.transient, v.refusesTransient(), "%s refuses transient queues", text)
		assert.Equal(t, want.transient, Delays(text), "%s delays messages", text)
		assert.Equal(t, want.cycles, v.losesCycles(), "%s loses cycles", text)
		assert.Equal(t, want.stops, StopsSingleConsumers(text), "%s stops single active consumers", text)
	}
}

func TestPolicyCommand(t *testing.T) {
	assert.Equal(t, `rabbitmqctl set_policy -p '/' --apply-to queues 'retry of a.b' '^a\.b$' `+
		`'{"dead-letter-exchange":"retry","dead-letter-routing-key":"dead.a.b","delivery-limit":20}'`, PolicyCommand("/", "a.b", "retry", true))
	assert.Equal(t, `rabbitmqctl set_policy -p '/' --apply-to queues 'retry of '\''x"' '^'\''x"$' `+
		`'{"dead-letter-exchange":"retry","dead-letter-routing-key":"dead.'\''x\""}'`, PolicyCommand("/", `'x"`, "retry", false), "a name cannot end the word")
}

// TestAnArgumentIsReadFromTextThatIsCutOff: the text is that of RabbitMQ 4.0.
func TestAnArgumentIsReadFromTextThatIsCutOff(t *testing.T) {
	for reason, want := range map[string]string{
		`PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for queue 'q' in vhost '/': received the value 'retry' of type 'longs...`: "x-dead-letter-exchange",
		`PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'it's...`:                                                                 "x-max-length",
		`PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'q...' in vhost '/': received '6' but current is '5'`:                    "",
		`PRECONDITION_FAILED - fast reply consumer does not exist...`:                                                                              "",
	} {
		err := error(&amqp091.Error{Code: amqp091.PreconditionFailed, Reason: reason})
		argument, isCut := cutArgument(err)
		assert.Equal(t, want, argument)
		assert.Equal(t, want != "", isCut)
		if isCut {
			_, ok := refusal.DifferenceIn(err)
			assert.False(t, ok)
		}
	}
	_, isCut := cutArgument(os.ErrClosed)
	assert.False(t, isCut)
}

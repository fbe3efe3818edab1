package topology_test

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// limited has all limits and arguments. A byte, an int and an int64 are equal on the broker.
func limited(c *topology.Config) {
	c.TierGroup = "shop"
	c.DeadLetters = topology.Retention{MaxLength: 10, MaxAge: 24 * time.Hour}
	c.TierArguments = amqp091.Table{"x-max-length": 1 << 40, "x-quorum-initial-group-size": byte(5), "x-queue-leader-locator": "client-local"}
	c.DeadLetterArguments = amqp091.Table{"x-quorum-target-group-size": 3, "x-queue-leader-locator": "client-local"}
}

func arguments(t *testing.T, of topology.Topology, queue string) amqp091.Table {
	t.Helper()
	for _, q := range of.Queues {
		if q.Name == queue {
			return q.Arguments
		}
	}
	require.Fail(t, "no such queue", queue)
	return nil
}

func TestLimitsAndArgumentsOfEachQueue(t *testing.T) {
	orders := existing(nil, limited) // a classic queue, which has an inbox
	require.NoError(t, orders.Validate())
	assert.Equal(t, amqp091.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000), "x-queue-leader-locator": "client-local", "x-quorum-target-group-size": int64(3),
		"x-max-length": int64(10), "x-overflow": "drop-head", "x-message-ttl": int64(86_400_000),
	}, arguments(t, orders, "orders.dead"))
	assert.Equal(t, amqp091.Table{
		"x-queue-type": "quorum", "x-message-ttl": int64(1000), "x-dead-letter-exchange": "shop.retry.return",
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-queue-leader-locator": "client-local",
		"x-max-length": int64(1) << 40, "x-quorum-initial-group-size": int64(5),
	}, arguments(t, orders, "shop.retry.1s"))
	assert.Equal(t, amqp091.Table{
		"x-queue-type": "quorum", "x-message-ttl": int64(0), "x-dead-letter-exchange": "retry.return", "x-dead-letter-routing-key": "inbox.orders",
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-queue-leader-locator": "client-local",
		"x-quorum-initial-group-size": int64(5),
	}, arguments(t, orders, "orders.retry.inbox"), "an inbox has no limit")
	assert.Equal(t, arguments(t, of("orders"), "retry.orphans"), arguments(t, orders, "retry.orphans"), "the orphans depend on no option")
	assert.Equal(t, of("orders").WorkQueue, of("orders", limited).WorkQueue)
}

// The exchanges and the orphans, which work queues share, depend on no option.
func TestLimitsOfClassicQueues(t *testing.T) {
	own := amqp091.Table{"x-max-length-bytes": uint32(1000), "x-queue-version": 2}
	orders := of("orders", func(c *topology.Config) {
		c.QueueType, c.WorkQueueMode, c.DeadLetters.MaxAge, c.TierArguments = topology.Classic, topology.Leave, time.Hour, own
	})
	assert.Equal(t, uint32(1000), own["x-max-length-bytes"], "New does not change the app's arguments")
	own["x-max-length-bytes"] = "changed"
	require.NoError(t, orders.Validate())
	assert.Equal(t, of("orders").Exchanges, orders.Exchanges)
	assert.Equal(t, of("orders").Queues[0], orders.Queues[0], "the orphans")
	assert.Equal(t, amqp091.Table{"x-queue-type": "classic", "x-message-ttl": int64(3_600_000)}, arguments(t, orders, "orders.dead"))
	assert.Equal(t, amqp091.Table{
		"x-queue-type": "classic", "x-message-ttl": int64(1000), "x-dead-letter-exchange": "retry.return", "x-queue-version": int64(2),
		"x-max-length-bytes": int64(1000), "x-overflow": "reject-publish",
	}, arguments(t, orders, "orders.retry.1s"), "a full tier refuses messages, and drops none")
	plain := of("orders", func(c *topology.Config) { c.QueueType = topology.Classic })
	assert.Equal(t, amqp091.Table{
		"x-queue-type": "classic", "x-message-ttl": int64(1000), "x-dead-letter-exchange": "retry.return",
	}, arguments(t, plain, "orders.retry.1s"))
}

// TestRefusedArguments: an argument that the broker knows and that breaks a promise has its reason. All faults are reported.
func TestRefusedArguments(t *testing.T) {
	for key, reasons := range map[string][2]string{ // of a tier, of dead letters
		"x-message-ttl":               {"change the schedule", "set DeadLetters.MaxAge"},
		"x-max-length":                {"", "set DeadLetters.MaxLength"},
		"x-max-length-bytes":          {"", "set DeadLetters.MaxLength"},
		"x-overflow":                  {"drops messages that wait", "consumers hold failed messages"},
		"x-dead-letter-exchange":      {"come back to their work queue", "stays in its queue"},
		"x-dead-letter-routing-key":   {"come back to their work queue", "stays in its queue"},
		"x-dead-letter-strategy":      {"come back to their work queue", "stays in its queue"},
		"x-queue-type":                {"set QueueType", "set QueueType"},
		"x-expires":                   {"deletes a queue", "deletes a queue"},
		"x-delivery-limit":            {"has no effect", "no dead letter is dropped"},
		"x-single-active-consumer":    {"has no effect", "refuses basic.get"},
		"x-max-in-memory-length":      {"no effect since RabbitMQ 3.10", "no effect since RabbitMQ 3.10"},
		"x-max-in-memory-bytes":       {"no effect since RabbitMQ 3.10", "no effect since RabbitMQ 3.10"},
		"x-queue-master-locator":      {"closes the connection", "closes the connection"},
		"x-queue-version":             {"only queues of type classic have it", "only queues of type classic have it"},
		"x-max-lenght":                {"not among the arguments that may be added, x-max-length, ", "not among the arguments that may be added, x-queue-leader-locator"},
		"x-quorum-initial-group-size": {"", ""},
		"x-quorum-target-group-size":  {"", ""},
	} {
		config := topology.Config{
			Tiers: schedule.Tiers(), TierArguments: amqp091.Table{key: 7}, DeadLetterArguments: amqp091.Table{key: 7, "x-queue-leader-locator": "leader"},
		}
		err := config.Validate()
		require.ErrorContains(t, err, `DeadLetterArguments["x-queue-leader-locator"] is "leader": it must be one of ["balanced" "client-local"]`)
		for i, field := range []string{"TierArguments", "DeadLetterArguments"} {
			if prefix := fmt.Sprintf("%s[%q]", field, key); reasons[i] == "" {
				assert.NotContains(t, err.Error(), prefix)
			} else {
				assert.Regexp(t, `(?m)^`+regexp.QuoteMeta(prefix+" is 7: ")+`.*`+regexp.QuoteMeta(reasons[i]), err.Error())
			}
		}
		for line := range strings.Lines(err.Error()) {
			assert.Regexp(t, `: (.* )?(remove it|set |change |must be )`, line, "what to do")
		}
		assert.ErrorContains(t, topology.New(config, topology.Queue{Name: "orders"}).Validate(), "leader")
	}
}

func TestValuesThatTheBrokerRefuses(t *testing.T) {
	for _, value := range []any{0, -1, int8(-1), "5", 5.0, true, nil, uint64(math.MaxUint64), amqp091.Table{}} {
		config := topology.Config{Tiers: schedule.Tiers(), TierArguments: amqp091.Table{"x-max-length": value}}
		assert.ErrorContains(t, config.Validate(), "it must be an integer from 1 to 9223372036854775807", "%T", value)
	}
	for _, value := range []any{1, int8(1), int64(math.MaxInt64), uint16(1), uint64(math.MaxInt64)} {
		config := topology.Config{Tiers: schedule.Tiers(), TierArguments: amqp091.Table{"x-max-length": value}}
		assert.NoError(t, config.Validate(), "%T", value)
	}
	config := topology.Config{Tiers: schedule.Tiers(), QueueType: topology.Classic, TierArguments: amqp091.Table{"x-quorum-initial-group-size": 3}}
	assert.ErrorContains(t, config.Validate(), "only queues of type quorum have it, and QueueType is classic")
}

func TestRefusedLimits(t *testing.T) {
	for want, limits := range map[string]topology.Retention{
		"MaxLength is -1":      {MaxLength: -1},
		"MaxAge is -1s":        {MaxAge: -time.Second},
		"MaxAge is 1.5ms":      {MaxAge: 1500 * time.Microsecond},
		"MaxAge is 87600h0m0.": {MaxAge: backoff.MaxDelay + time.Millisecond},
	} {
		assert.ErrorContains(t, topology.Config{Tiers: schedule.Tiers(), DeadLetters: limits}.Validate(), "DeadLetters."+want)
	}
	assert.NoError(t, topology.Config{Tiers: schedule.Tiers(), DeadLetters: topology.Retention{MaxLength: 1, MaxAge: backoff.MaxDelay}}.Validate())
	assert.Equal(t, "none", topology.Retention{}.String())
}

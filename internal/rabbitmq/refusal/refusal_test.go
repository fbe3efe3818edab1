package refusal_test

import (
	"os"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
)

// The texts are those of RabbitMQ 3.10, 4.0 and 4.3, which are the same.
func TestConflictIsReadFromTheBrokersError(t *testing.T) {
	for reason, want := range map[string][3]string{
		`PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for queue 'pq1' in vhost '/': received none but current is the value 'retry' of type 'longstr'`: {"x-dead-letter-exchange", "none", "retry"},
		`PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'pq2' in vhost '/': received the value '5' of type 'long' but current is none`:                 {"x-message-ttl", "5", "none"},
		`PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'it's' in vhost '/': received '6' but current is '5'`:                                          {"x-message-ttl", "6", "5"},
		`PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'`:                                            {"durable", "false", "true"},
	} {
		conflict := &refusal.ArgumentConflictError{}
		require.ErrorAs(t, explain(reason), &conflict, reason)
		assert.Equal(t, want, [3]string{conflict.Argument, conflict.Want, conflict.Have})
		assert.Equal(t, "orders", conflict.Object)
	}
	other := "PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue 'pq3' in vhost '/' of queue type rabbit_quorum_queue"
	conflict := &refusal.ArgumentConflictError{}
	assert.NotErrorAs(t, explain(other), &conflict)
	assert.ErrorContains(t, explain(other), other)
}

func explain(reason string) error {
	return refusal.Explain("declare queue", "orders", &amqp091.Error{Code: amqp091.PreconditionFailed, Reason: reason})
}

func TestMissingPermissionNamesThePageOfPermissions(t *testing.T) {
	err := refusal.Explain("declare queue", "orders", &amqp091.Error{Code: amqp091.AccessRefused, Reason: "ACCESS_REFUSED"})
	assert.ErrorContains(t, err, "docs/operations.md")
	_, err = os.Stat("../../../docs/operations.md")
	assert.NoError(t, err)
}

// TestAQueueThatIsJustCreatedIsNoMissingQueue: its declaration would be no remedy.
func TestAQueueThatIsJustCreatedIsNoMissingQueue(t *testing.T) {
	const absent = "NOT_FOUND - home node 'rabbit@localhost' of durable queue 'orders.dead' in vhost '/' is down or inaccessible"
	err := refusal.Explain("declare queue", "orders.dead", &amqp091.Error{Code: amqp091.NotFound, Reason: absent})
	assert.True(t, refusal.IsAbsent(err))
	assert.ErrorContains(t, err, "its node is down or is just creating it")
	err = refusal.Explain("verify queue", "orders.dead", &amqp091.Error{Code: amqp091.NotFound, Reason: "NOT_FOUND - no queue 'orders.dead' in vhost '/'"})
	assert.False(t, refusal.IsAbsent(err))
	assert.ErrorContains(t, err, "Topology.Declare declares it")
}

func TestVhostIsReadFromTheBrokersError(t *testing.T) {
	for reason, want := range map[string]string{
		`PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'orders.dead' in vhost '/': received the value '5' of type 'long' but current is none`: "/",
		`PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'it's' in vhost 'shop's': received '6' but current is '5'`:                             "shop's",
		"PRECONDITION_FAILED - fast reply consumer does not exist":                                                                                              "",
	} {
		assert.Equal(t, want, refusal.VhostIn(&amqp091.Error{Code: amqp091.PreconditionFailed, Reason: reason}))
	}
	assert.Empty(t, refusal.VhostIn(nil))
}

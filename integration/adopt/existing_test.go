package adopt

import (
	"regexp"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// TestExistingQuorumQueueIsProtectedByAPolicy: the command that the library prints protects a quorum queue without a dead-letter
// exchange, and AllowUnprotectedQuorum accepts it. Package integration/retry has the tests of what is printed when.
func TestExistingQuorumQueueIsProtectedByAPolicy(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	_, err := broker.Channel(t).QueueDeclare(d.queue, true, false, false, false, amqp091.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)

	// Step 1: run the command that the error or the warning has.
	refused := d.instance(subscriberOnly)
	text := ""
	if err := d.subscribe(refused); err != nil {
		require.ErrorIs(t, err, topology.ErrUnprotectedQuorum)
		text = err.Error()
	} else {
		require.Len(t, refused.log.Lines("rabbitmqctl set_policy"), 1)
		text = refused.log.Lines("rabbitmqctl set_policy")[0]
	}
	command := regexp.MustCompile(`rabbitmqctl set_policy -p '([^']+)' --apply-to queues '([^']+)' '([^']+)' '([^']+)'`).FindStringSubmatch(text)
	require.NotNil(t, command, text)
	t.Cleanup(func() { testapp.DeletePolicy(t, command[2]) })
	broker.Ctl(t, "set_policy", "-p", command[1], "--apply-to", "queues", command[2], command[3], command[4])

	// Step 2: the command shows the policy.
	broker.Eventually(t, patience, func() bool {
		return regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(d.queue+"\t"+command[2]) + `$`).MatchString(broker.Ctl(t, "list_queues", "name", "policy"))
	}, "the policy is in effect")

	// Step 3: AllowUnprotectedQuorum.
	allowed := d.instance(withMiddleware)
	allowed.change = func(c *config.Config) { c.AllowUnprotectedQuorum = true }
	require.NoError(t, d.subscribe(allowed))
	testapp.Send(t, "", d.queue, testapp.Orders(1)...)
	for deliveries := 1; testapp.Depth(t, d.queue+".dead") == 0; deliveries++ {
		require.LessOrEqual(t, deliveries, 60)
		channel := broker.Channel(t)
		delivery, found, err := channel.Get(d.queue, false)
		require.NoError(t, err)
		if found {
			require.NoError(t, delivery.Reject(true)) // counts on every version
		}
		require.NoError(t, channel.Close())
	}
	assert.Equal(t, "order 00000", string(testapp.Take(t, d.queue+".dead", 1)[0].Body), "what would have been dropped")
	allowed.start()
}

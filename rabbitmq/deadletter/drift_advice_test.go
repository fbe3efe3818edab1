package deadletter

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// TestPoliciesAreQuoted: each name in quotes of its own.
func TestPoliciesAreQuoted(t *testing.T) {
	t.Parallel()
	assert.Equal(t, `the policy "bad" or "opbad"`, policyOf(management.Queue{Policy: "bad", Operator: "opbad"}))
	assert.Equal(t, `the policy "opbad"`, policyOf(management.Queue{Operator: "opbad"}))
	assert.Equal(t, "a policy", policyOf(management.Queue{}))
}

// TestAdviceIsOneCommand: a name cannot become more than an argument of the command that an operator copies.
func TestAdviceIsOneCommand(t *testing.T) {
	t.Parallel()
	const hostile = "a'; echo \"$(id)\" #"
	c := &comparison{vhost: hostile}
	queue := topology.Queue{Name: hostile, Arguments: map[string]any{"x-max-length": int64(5)}}
	advice := c.advice(queue, nil, &topology.ArgumentConflictError{Argument: "x-max-length", Have: "none"})
	command := `rabbitmqctl() { printf '%s|' "$@"; }; ` + advice[len("set it by a policy, and configure the app without it: "):]
	output, err := exec.Command("sh", "-c", command).CombinedOutput()
	require.NoError(t, err, command)
	assert.Equal(t, "set_policy|-p|"+hostile+"|--apply-to|queues|arguments of "+hostile+`|^a'; echo "\$\(id\)" #$|{"max-length":5}|`, string(output))
}

// TestDifferencesOfAnExchange are its arguments, its type and whether it is durable, in this order.
func TestDifferencesOfAnExchange(t *testing.T) {
	t.Parallel()
	const name = "retry.orphans"
	c := &comparison{there: management.Inventory{Exchanges: map[string]management.Exchange{name: {
		Type: "topic", Arguments: management.Arguments{"alternate-exchange": "x"}}}}}
	c.exchange(topology.Exchange{Name: name, Kind: "fanout", Durable: true})
	var arguments []string
	for _, d := range c.Differences {
		arguments = append(arguments, d.Argument)
	}
	assert.Equal(t, []string{"alternate-exchange", "type", "durable"}, arguments)
}

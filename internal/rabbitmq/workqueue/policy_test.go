package workqueue

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestPolicyCommand(t *testing.T) {
	assert.Equal(t, `rabbitmqctl set_policy -p '/' --apply-to queues 'retry of a.b' '^a\.b$' `+
		`'{"dead-letter-exchange":"retry","dead-letter-routing-key":"dead.a.b","delivery-limit":20}'`, PolicyCommand("/", "a.b", "retry", true))
	assert.Equal(t, `rabbitmqctl set_policy -p '/' --apply-to queues 'retry of '\''x"' '^'\''x"$' `+
		`'{"dead-letter-exchange":"retry","dead-letter-routing-key":"dead.'\''x\""}'`, PolicyCommand("/", `'x"`, "retry", false), "a name cannot end the word")
}

package workqueue

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

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

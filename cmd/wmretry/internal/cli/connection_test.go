package cli

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/backend"
)

// TestTheCommandsAreThoseOfTheAddress: they are made before the flags are read, and must not be those of another backend
// than the one that is opened.
func TestTheCommandsAreThoseOfTheAddress(t *testing.T) {
	for _, row := range []struct{ variable, rabbit, flag, want string }{
		{"", "", "", "RabbitMQ"},
		{"", "amqp://broker", "", "RabbitMQ"},
		{"", "redis://a", "", "Redis"},
		{"nats://a redis://b", "amqp://broker", "", "NATS"},
		{"nats://a", "amqp://broker", "kafka://c", "Kafka"},
		{"nonsense", "redis://a", "", "RabbitMQ"},
	} {
		t.Setenv(urlVariable, row.variable)
		t.Setenv(rabbitVariable, row.rabbit)
		args := []string{"dead", "list", "orders", "--reason", "x"}
		if row.flag != "" {
			args = append(args, "--url", row.flag)
		}
		assert.Equal(t, row.want, kindOf(args).Name, row)
	}
}

// TestAnAddressThatWasDerivedIsExplained: the user has never written its port.
func TestAnAddressThatWasDerivedIsExplained(t *testing.T) {
	silent := errors.New("the management API at broker:15672 does not answer")
	assert.Equal(t, silent.Error(), (&env{}).failure(silent))
	e := &env{}
	address, err := backend.Parse("amqp://broker:5673/")
	require.NoError(t, err)
	t.Setenv("AMQP_MANAGEMENT_URL", "")
	derived, err := e.managementAddress(address)
	require.NoError(t, err)
	assert.Equal(t, "http://broker:15673", derived)
	assert.Contains(t, e.failure(silent), "its port plus 10,000: name another one with --management")
	assert.NotContains(t, e.failure(errors.New("refused")), "--management")
}

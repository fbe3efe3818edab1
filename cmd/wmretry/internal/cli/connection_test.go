package cli

import (
	"testing"

	"github.com/stretchr/testify/assert"
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

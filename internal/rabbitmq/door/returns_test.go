package door

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
)

// TestALostConnectionIsNoFaultOfABinding: the log has it elsewhere, and bindings are no fewer for it.
func TestALostConnectionIsNoFaultOfABinding(t *testing.T) {
	for name, row := range map[string]struct {
		err    *amqp091.Error
		logged bool
	}{
		"refused": {&amqp091.Error{Code: amqp091.AccessRefused, Server: true, Recover: true}, true},
		"closed":  {&amqp091.Error{Code: amqp091.ConnectionForced, Server: true}, false},
		"lost":    {amqp091.ErrClosed, false},
	} {
		log := watermill.NewCaptureLogger()
		r := &returns{logger: log, failing: map[string]bool{}}
		r.report("orders", refusal.Explain("bind to exchange \"retry\" the queue", "orders", row.err))
		assert.Equal(t, row.logged, len(log.Captured()[watermill.ErrorLogLevel]) == 1, name)
		assert.Equal(t, row.logged, r.failing["orders"], name)
	}
}

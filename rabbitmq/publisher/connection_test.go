package publisher

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
)

func TestHintOfAClientCertificate(t *testing.T) {
	t.Parallel()
	for _, ended := range []error{amqp.ErrClosed, io.EOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		assert.Contains(t, hintOf(amqp.URI{Scheme: "amqps"}, fmt.Errorf("write: %w", ended)), "client's certificate", ended)
		assert.Empty(t, hintOf(amqp.URI{Scheme: "amqp"}, ended))
	}
	assert.Empty(t, hintOf(amqp.URI{Scheme: "amqps"}, errors.New("tls: certificate required")), "which says it already")
}

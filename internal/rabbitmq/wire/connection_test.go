package wire

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
)

func TestHintOfAClientCertificate(t *testing.T) {
	t.Parallel()
	for _, ended := range []error{amqp091.ErrClosed, io.EOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		assert.Contains(t, hintOf(amqp091.URI{Scheme: "amqps"}, fmt.Errorf("write: %w", ended)), "client's certificate", ended)
		assert.Empty(t, hintOf(amqp091.URI{Scheme: "amqp"}, ended))
	}
	assert.Empty(t, hintOf(amqp091.URI{Scheme: "amqps"}, errors.New("tls: certificate required")), "the error already names the cause")
}

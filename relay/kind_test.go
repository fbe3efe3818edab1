package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/failure"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

// A Watermill publisher says nothing but that it took too long: the copy may have arrived.
func TestKindsOfPublishErrors(t *testing.T) {
	errDown := errors.New("the bank is down")
	refused := &unpublished.Error{Kind: unpublished.Refused, Err: errDown}
	for name, row := range map[string]struct {
		err        error
		classified bool
		want       unpublished.Kind
		lost       bool
	}{
		"timeout":            {fmt.Errorf("publish: %w", os.ErrDeadlineExceeded), true, unpublished.Unconfirmed, false},
		"context":            {context.DeadlineExceeded, true, unpublished.Unconfirmed, false},
		"no answer":          {&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, true, unpublished.Unconfirmed, false},
		"given up":           {&net.OpError{Op: "read", Err: syscall.ETIMEDOUT}, true, unpublished.Unconfirmed, true},
		"reset":              {&net.OpError{Op: "read", Err: syscall.ECONNRESET}, false, 0, false},
		"no connection":      {&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, false, 0, false},
		"any other":          {errDown, false, 0, false},
		"of RabbitMQ":        {&failure.Error{Err: publish.ErrNacked}, true, unpublished.Rejected, false},
		"of the publisher":   {fmt.Errorf("publish: %w", refused), true, unpublished.Refused, false},
		"with a timeout too": {errors.Join(refused, os.ErrDeadlineExceeded), true, unpublished.Refused, false},
	} {
		err := ofCopy(row.err)
		require.ErrorIs(t, err, row.err, name)
		var failed *unpublished.Error
		require.Equal(t, row.classified, errors.As(err, &failed), name)
		if row.classified {
			assert.Equal(t, row.want, failed.Kind, name)
			assert.Equal(t, row.lost, failed.Lost.Now(), name)
		}
	}
}

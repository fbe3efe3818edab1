package deadletter

import (
	"errors"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
)

// TestEachMessageOfACallHasItsOwnError: those without one are confirmed. A call that ends before it sends has one
// error, which is that of all.
func TestEachMessageOfACallHasItsOwnError(t *testing.T) {
	t.Parallel()
	fault := func(id string, kind, cause error) *publisher.PublishError {
		return &publisher.PublishError{MessageUUID: id, Err: kind, Cause: cause}
	}
	away := fault("0", publisher.ErrNotConnected, nil)
	nacked, lost := fault("0", publisher.ErrNacked, nil), fault("2", publisher.ErrNotConnected, nil)
	byBroker := fault("1", publisher.ErrRefused, &amqp091.Error{Code: amqp091.PreconditionFailed})
	tooLarge := fault("2", publisher.ErrRefused, errors.New("8193 headers"))
	for name, row := range map[string]struct {
		err      error
		prepared bool
		want     []error
	}{
		"all are confirmed":               {nil, true, []error{nil, nil, nil}},
		"there is no connection":          {away, false, []error{away, away, away}},
		"the last one cannot be sent":     {tooLarge, true, []error{tooLarge, tooLarge, tooLarge}},
		"the broker refuses one":          {byBroker, true, []error{nil, byBroker, nil}},
		"the connection is lost":          {lost, true, []error{nil, nil, lost}},
		"two of them have not the same":   {errors.Join(nacked, lost), true, []error{nacked, nil, lost}},
		"the broker nacks one":            {nacked, true, []error{nacked, nil, nil}},
		"the connection is lost at first": {lost, false, []error{lost, lost, lost}},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, row.want, errorsOf(row.err, row.prepared, 3)) })
	}
}

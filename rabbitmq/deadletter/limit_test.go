package deadletter

import (
	"context"
	"fmt"
	"math"
	"net"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
)

// TestLimitOf: from 4.0 on -1 means no limit, and a limit takes its place. Before it means that no letter may be given back.
func TestLimitOf(t *testing.T) {
	const old, later = "3.10.8", "4.0.5"
	is := func(n int64) *int64 { return &n }
	for name, row := range map[string]struct {
		version          string
		argument, policy *int64
		known            bool
		want             limit
	}{
		"nothing is known":                          {later, nil, nil, false, unknown},
		"nothing is known, before 4.0":              {old, nil, nil, false, unknown},
		"no limit, before 4.0":                      {old, nil, nil, true, never},
		"no limit":                                  {later, nil, nil, true, workqueue.DefaultLimit},
		"no limit, version not known":               {"", nil, nil, true, workqueue.DefaultLimit},
		"argument":                                  {later, is(1_000_000), nil, true, 1_000_000},
		"argument, policies not known":              {later, is(1_000_000), nil, false, unknown},
		"low argument, policies not known":          {later, is(3), nil, false, 3},
		"-1":                                        {later, is(-1), nil, true, never},
		"-1, policies not known":                    {later, is(-1), nil, false, unknown},
		"-1, before 4.0":                            {old, is(-1), nil, true, 0},
		"-1, before 4.0, policies not known":        {old, is(-1), nil, false, 0},
		"policy":                                    {later, nil, is(3), true, 3},
		"policy below the argument":                 {later, is(1_000_000), is(20), true, 20},
		"policy above the argument":                 {old, is(3), is(20), true, 3},
		"policy in place of -1":                     {later, is(-1), is(20), true, 20},
		"policy beside -1, before 4.0":              {old, is(-1), is(20), true, 0},
		"policy of -1 beside an argument":           {later, is(20), is(-1), true, 20},
		"policy of 0: the first requeue drops":      {later, is(1_000_000), is(0), true, 0},
		"argument of 0, where policies are unknown": {later, is(0), nil, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var set []int64
			for _, n := range []*int64{row.argument, row.policy} {
				if n != nil {
					set = append(set, *n)
				}
			}
			assert.Equal(t, row.want, limitOf(row.version, row.known, set...))
		})
	}
}

// TestLettersAreReplacedBelowTheLimit: a letter is given back only while four lost connections more would not drop it.
// An unknown limit is taken for one that is not 0: a limit of 0 drops the letters at the first look.
func TestLettersAreReplacedBelowTheLimit(t *testing.T) {
	for l, want := range map[limit]int64{unknown: 1, 0: 0, 1: 1, 3: 1, 5: 1, 6: 2, 20: 16, 1_000_000: 999_996, never: math.MaxInt64 - 4} {
		assert.Equal(t, want, l.replacedAt(), int64(l))
	}
}

// TestErrorsOfAClosedSocketAreALostConnection: the client returns them before it notices that the connection is closed.
func TestErrorsOfAClosedSocketAreALostConnection(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	socket, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	require.NoError(t, socket.Close())
	_, write := socket.Write([]byte("x"))
	_, read := socket.Read(make([]byte, 1))
	for _, err := range []error{
		write, read, amqp091.ErrClosed, &amqp091.Error{Code: amqp091.ConnectionForced}, &amqp091.Error{Code: amqp091.InternalError},
	} {
		require.ErrorIs(t, explain("read", "orders.dead", fmt.Errorf("a call: %w", err)), errLost)
	}
	for _, err := range []error{
		&amqp091.Error{Code: amqp091.NotFound, Recover: true}, &amqp091.Error{Code: amqp091.PreconditionFailed, Recover: true},
		context.DeadlineExceeded,
	} {
		require.NotErrorIs(t, explain("read", "orders.dead", err), errLost)
	}
}

// TestALetterIsNotBlamedForItsQueue: the broker has the same code for a message that it cannot deliver, and for a queue
// without a leader. The second one ends by itself, and its letters are good.
func TestALetterIsNotBlamedForItsQueue(t *testing.T) {
	ofBroker := func(text string) error {
		return &amqp091.Error{Code: amqp091.InternalError, Reason: text, Server: true}
	}
	assert.ErrorIs(t, ofLetter(fmt.Errorf("a frame: %w", wire.ErrUnreadable)), wire.ErrUnreadable)
	assert.ErrorContains(t, ofLetter(ofBroker("INTERNAL_ERROR")), "the broker cannot deliver it")
	for _, cause := range []string{"noproc", "timeout"} {
		assert.NoError(t, ofLetter(ofBroker(
			"INTERNAL_ERROR - Cannot get a message from queue 'queue 'orders.dead' in vhost '/'': "+cause)))
	}
	assert.NoError(t, ofLetter(&amqp091.Error{Code: amqp091.ConnectionForced, Server: true}))
	assert.NoError(t, ofLetter(wire.ErrLost))
}

// The management API is some seconds late, and the number of ready messages is not.
func TestLettersThatAReaderHadAreCountedOnce(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		api  management.Queue
		now  amqp091.Queue
		want management.Queue
	}{
		"a list has ended": {
			management.Queue{Messages: 2700, Unacked: 2700}, amqp091.Queue{Messages: 2700}, management.Queue{Messages: 2700, Ready: 2700},
		},
		"a list has half of them": {
			management.Queue{Messages: 2700, Unacked: 2700}, amqp091.Queue{Messages: 1350},
			management.Queue{Messages: 2700, Ready: 1350, Unacked: 1350},
		},
		"all are gone": {management.Queue{Messages: 9, Ready: 9}, amqp091.Queue{}, management.Queue{}},
		"a queue with a consumer grows": {
			management.Queue{Messages: 116, Ready: 100, Unacked: 16, Consumers: 1}, amqp091.Queue{Messages: 120, Consumers: 1},
			management.Queue{Messages: 136, Ready: 120, Unacked: 16, Consumers: 1},
		},
	} {
		assert.Equal(t, of.want, renewed(of.api, of.now), name)
	}
}

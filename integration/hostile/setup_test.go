// Package hostile_test tests messages that no publisher should send, and handlers that do what no handler should do, on a real
// broker. Every message, counted by identity, is processed or dead-lettered. None is lost, and none is retried in a hot loop.
package hostile_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

var errDown = errors.New("the payment service is down")

const soon = 60 * time.Second // much longer than any of it takes

// letters takes n dead letters of a queue, by the identity in their bodies, and asserts that there are no more.
func letters(t testing.TB, queue string, n int) map[string]amqp091.Delivery {
	t.Helper()
	all := map[string]amqp091.Delivery{}
	for _, letter := range testapp.Take(t, queue+".dead", n) {
		all[string(letter.Body)] = letter
	}
	require.Len(t, all, n, "every identity must occur once")
	return all
}

// empty waits until a queue contains no message, neither ready nor unacknowledged.
func empty(t testing.TB, queues ...string) {
	t.Helper()
	client := broker.Management(t)
	for _, queue := range queues {
		broker.Eventually(t, soon, func() bool {
			info, err := client.GetQueue("/", queue)
			return err == nil && info.Messages == 0 && info.MessagesUnacknowledged == 0
		}, queue+" is empty")
	}
}

// own returns the headers that the message's publisher has set, without those of the broker and of this library.
func own(letter amqp091.Delivery) amqp091.Table {
	headers := maps.Clone(letter.Headers)
	maps.DeleteFunc(headers, func(key string, _ any) bool {
		return strings.HasPrefix(key, "retry_") || strings.HasSuffix(key, "_poisoned") || strings.HasPrefix(key, "x-")
	})
	return headers
}

// exhausted asserts that a message was dead-lettered after this number of failures.
func exhausted(t testing.TB, letter amqp091.Delivery, failures string) {
	t.Helper()
	assert.Equal(t, failures, letter.Headers[recordkey.Failures])
	assert.Equal(t, string(retry.DeadReasonExhausted), letter.Headers[recordkey.DeadReason])
}

// same asserts that every identity was counted this number of times.
func same(t testing.TB, times int, counts map[string]int, identities ...string) {
	t.Helper()
	want := map[string]int{}
	for _, identity := range identities {
		want[identity] = times
	}
	assert.Equal(t, want, counts)
}

func keys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

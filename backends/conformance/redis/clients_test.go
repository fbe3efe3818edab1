package redis_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/retry"
)

// permissions are those of the package's documentation.
var permissions = []string{
	"on", ">secret", "~orders", "~idle", "~retry.*", "+@stream", "+@sortedset", "+@hash", "+@set", "+eval", "+evalsha", "+time",
	"+get", "+set", "+del", "+pexpire",
}

// A message of a topic whose handler was busy comes before a command for another topic ends, which waits for a second:
// also where the client cannot end a command, or is polled. Nothing is left.
func TestOtherClients(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T, admin *redis.Client) redis.UniversalClient{
		"a client": func(t *testing.T, admin *redis.Client) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: admin.Options().Addr})
		},
		"a Ring": func(t *testing.T, admin *redis.Client) redis.UniversalClient {
			return redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": admin.Options().Addr}})
		},
		"permissions": func(t *testing.T, admin *redis.Client) redis.UniversalClient {
			rules := append([]string{"+client|id", "+client|unblock"}, permissions...)
			require.NoError(t, admin.ACLSetUser(t.Context(), "app", rules...).Err())
			return redis.NewClient(&redis.Options{Addr: admin.Options().Addr, Username: "app", Password: "secret"})
		},
		"fewer permissions": func(t *testing.T, admin *redis.Client) redis.UniversalClient {
			require.NoError(t, admin.ACLSetUser(t.Context(), "app", permissions...).Err())
			return redis.NewClient(&redis.Options{Addr: admin.Options().Addr, Username: "app", Password: "secret"})
		},
		"two connections": func(t *testing.T, admin *redis.Client) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: admin.Options().Addr, PoolSize: 2})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			admin := start(t)
			client := open(t, admin)
			defer func() { assert.NoError(t, client.Close()) }()
			const delay, busy = 50 * time.Millisecond, 20 * time.Millisecond
			connection := connect(t, client, 0, delay)
			idle, err := connection.Subscriber("idle")
			require.NoError(t, err)
			_, err = idle.Subscribe(t.Context(), "idle")
			require.NoError(t, err)
			var seen ledger
			got := make(chan struct{}, 100)
			stop := run(t, connection, "bill", func(msg *message.Message) error {
				if seen.call(msg) == 1 {
					time.Sleep(busy) // meanwhile a command waits for the other topic
					return errDown
				}
				got <- struct{}{}
				return nil
			}, retry.Options{Concurrency: 1})
			inTime := 0
			for _, id := range ids(9) {
				time.Sleep(2 * busy)
				ctx, cancel := context.WithCancel(t.Context())
				waits, second := newClient(t, admin.Options().Addr), make(chan struct{})
				go func() {
					defer close(second)
					_ = waits.XRead(ctx, &redis.XReadArgs{Streams: []string{"nothing", "$"}, Block: time.Second}).Err()
				}()
				publish(t, connection.Publisher(), id)
				select {
				case <-got:
					inTime++
				case <-second:
					await(t, got, "the retry does not come")
				}
				cancel()
			}
			t.Logf("%d of 9 came before a command that waits for a second has ended", inTime)
			assert.Greater(t, inTime, 4)
			eventually(t, func() bool { return len(left(t, admin)) == 0 && inFlight(t, admin) == 0 }, "nothing is left")
			stop()
			consumers, err := admin.XInfoConsumers(t.Context(), orders, group).Result()
			require.NoError(t, err)
			assert.Empty(t, consumers)
		})
	}
}

package redisretry

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/inflight"
)

// The keys of a return topic have one hash tag, and begin with the prefix, for the key patterns of an ACL.
func TestTheKeysOfAReturnTopicAreInOneSlot(t *testing.T) {
	t.Parallel()
	s := newServer(Config{Client: redis.NewClient(&redis.Options{}), Prefix: "shop.retries"}, nil)
	keys := s.keys("shop.retries.return.billing.orders")
	keys = append(keys, s.subscribed("shop.retries.return.billing.orders"))
	tag := func(key string) string {
		_, rest, _ := strings.Cut(key, "{")
		inside, _, found := strings.Cut(rest, "}")
		assert.True(t, found)
		return inside
	}
	for _, key := range keys {
		assert.Equal(t, tag(keys[0]), tag(key))
		assert.True(t, strings.HasPrefix(key, "shop.retries."), key)
	}
}

// The looks at all hash tags of a cluster whose nodes do not answer end together, and close waits for them.
func TestCloseWhereNoNodeAnswers(t *testing.T) {
	t.Parallel()
	var silent atomic.Bool
	var looks atomic.Int64 // that got no answer
	dial := func(context.Context, string, string) (net.Conn, error) {
		own, other := net.Pipe()
		t.Cleanup(func() { assert.NoError(t, other.Close()) })
		go answer(other, &silent, &looks)
		return own, nil
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{"redis:6379"}, Dialer: dial, PoolSize: 2 * slots, DialTimeout: commandTimeout,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: "redis:6379"}}}}, nil
		},
	})
	t.Cleanup(func() { assert.NoError(t, client.Close()) })
	// go-redis 9.23 asks for the commands of the server first, one after the other and without a context. Connect has asked.
	require.NoError(t, client.Ping(t.Context()).Err())
	silent.Store(true)
	s := newServer(Config{Client: client}, nil)
	var readers sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for i := 0; len(s.watches) < slots; i++ {
		time.Sleep(50 * time.Millisecond) // the looks end at different times
		name := fmt.Sprint("orders-", i)
		alarm := s.watchOf(name).Alarm(name)
		none := func(bool) ([]*inflight.Taken, time.Duration, error) { return nil, -1, nil }
		readers.Go(func() { _, _ = alarm.Take(ctx, 1, none) })
	}
	require.Eventually(t, func() bool { return looks.Load() >= slots }, 10*commandTimeout, time.Millisecond)
	began := looks.Load()
	s.close()
	assert.Equal(t, began, looks.Load(), "no other look begins")
	cancel()
	readers.Wait()
}

// answer answers what a client asks on one connection of a server, until it is silent. It counts what comes then.
func answer(connection net.Conn, silent *atomic.Bool, looks *atomic.Int64) {
	lines := bufio.NewScanner(connection)
	for lines.Scan() { // a command is its number of words, and the size and the text of each word
		words := make([]string, max(0, number(lines.Text(), "*")))
		for i := range words {
			if size := lines.Scan(); !size || !lines.Scan() {
				return
			}
			words[i] = lines.Text()
		}
		if silent.Load() {
			looks.Add(1)
		}
		if silent.Load() || len(words) == 0 {
			continue
		}
		reply := "+PONG\r\n"
		switch strings.ToUpper(words[0]) {
		case "HELLO":
			reply = "-ERR unknown command\r\n"
		case "COMMAND":
			reply = "*0\r\n"
		case "CLIENT":
			reply = "+OK\r\n"
		}
		if _, err := io.WriteString(connection, reply); err != nil {
			return
		}
	}
}

func number(line, prefix string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(line, prefix))
	return n
}

// A delay that cannot be read is none: the message is due at once.
func TestTheDelayOfAMessage(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"": 0, "1m30s": 90 * time.Second, "-1s": 0, "soon": 0, "1ns": time.Nanosecond,
	} {
		msg := message.NewMessage("1", nil)
		msg.Metadata.Set(delay.DelayedForKey, text)
		assert.Equal(t, want, delayOf(msg), text)
	}
}

package deadletter_test

import (
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

// TestLooksBelowALimitOfAPolicy: looks lose no letter, whatever limit a policy sets on a dead-letter queue of the
// library, and whether the limit is known or not. Some looks read all letters, and some end after the first.
func TestLooksBelowALimitOfAPolicy(t *testing.T) {
	t.Parallel()
	const count = 5
	for name, row := range map[string]struct {
		limit, looks int
		management   func(t testing.TB) string
	}{
		"3, without the management API": {3, 4, nil},
		"3, the management API is away": {3, 4, func(testing.TB) string { return "http://guest:guest@127.0.0.1:1" }},
		"20, with the management API":   {20, 12, broker.ManagementURL},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := testapp.New(t)
			queue := deadletter.QueueOf(a.Queue("orders"))
			bury(t, a, a.Queue("orders"), count)
			limitByPolicy(t, queue, row.limit)
			c := deadletter.Config{URI: broker.URL(t), Prefix: a.Name}
			if row.management != nil {
				c.Management = row.management(t)
			}
			store, err := deadletter.Open(c, nil)
			require.NoError(t, err)
			defer store.Close()
			for range row.looks {
				require.Equal(t, upTo(count), ids(list(t, store, queue)))
				for _, err := range store.Browse(t.Context(), queue, letters.Filter{}) { // one letter
					require.NoError(t, err)
					break
				}
			}
			var left []string
			for _, d := range testapp.Take(t, queue, count) {
				left = append(left, d.Headers["_watermill_message_uuid"].(string))
				assert.Equal(t, a.Name, d.Exchange, "a copy came the same way")
				assert.Equal(t, "dead."+a.Queue("orders"), d.RoutingKey)
			}
			assert.Equal(t, upTo(count), left)
		})
	}
}

// look opens a store, and returns how many letters a look at a queue shows.
func look(t *testing.T, c deadletter.Config, queue string) (n int, failed error) {
	t.Helper()
	store, err := deadletter.Open(c, nil)
	require.NoError(t, err)
	defer store.Close()
	for _, err := range store.Browse(t.Context(), queue, letters.Filter{}) {
		if failed = err; err == nil {
			n++
		}
	}
	return n, failed
}

// TestLooksInTheFirstSecondsOfAQueue: the management API does not state the policies of a queue then, which is not
// "none".
func TestLooksInTheFirstSecondsOfAQueue(t *testing.T) {
	t.Parallel()
	queue := broker.Name(t, "young")
	broker.Clean(t, queue)
	testapp.PutPolicy(t, queue, "^"+queue+"$", `{"delivery-limit": 1}`)
	store, err := deadletter.Open(deadletter.Config{URI: broker.URL(t), Management: broker.ManagementURL(t), AnyLimit: true}, nil)
	require.NoError(t, err)
	defer store.Close()
	declare(t, queue, amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000)})
	testapp.Send(t, "", queue, testapp.Orders(3)...)
	for range 4 {
		require.Equal(t, upTo(3), ids(list(t, store, queue)))
	}
}

// TestALowLimitIsRefused, with what to do, and nothing is read. AnyLimit reads it.
func TestALowLimitIsRefused(t *testing.T) {
	t.Parallel()
	old := broker.Version(t) < 400
	for name, row := range map[string]struct {
		argument   int64
		management bool
		refused    bool
		want       string
	}{
		"3":                              {3, true, true, "x-delivery-limit is 3"},
		"-1":                             {-1, true, old, "x-delivery-limit is -1"},
		"-1, without the management API": {-1, false, old, "x-delivery-limit is -1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := broker.Name(t, "low")
			broker.Clean(t, queue)
			declare(t, queue, amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": row.argument})
			testapp.Send(t, "", queue, testapp.Orders(5)...)
			c := deadletter.Config{URI: broker.URL(t)}
			if row.management {
				c.Management = broker.ManagementURL(t)
			}
			n, err := look(t, c, queue)
			if row.refused {
				require.ErrorContains(t, err, row.want)
				require.ErrorContains(t, err, "--any-limit")
				require.Zero(t, n)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, 5, testapp.Depth(t, queue))
			c.AnyLimit = true
			for range 3 {
				n, err := look(t, c, queue)
				require.NoError(t, err)
				require.Equal(t, 5, n, "and copies keep also these")
			}
		})
	}
}

// TestAUserWhoMayNotReplaceLetters is refused before the first delivery where each look counts and the limit is not
// known, but not where there is no letter to replace.
func TestAUserWhoMayNotReplaceLetters(t *testing.T) {
	t.Parallel()
	a := testapp.New(t)
	queue := deadletter.QueueOf(a.Queue("orders"))
	bury(t, a, a.Queue("orders"), 5)
	a.Declare(a.Queue("empty"))
	limitByPolicy(t, queue, 3)
	user := broker.User(t, "^$", "^$", ".*")
	store := open(t, broker.WithUser(t, user, user), a.Name)
	for range 5 {
		for _, err := range store.Browse(t.Context(), queue, letters.Filter{}) {
			if looksCount(t) {
				require.ErrorContains(t, err, `the permission to write to the exchange "`+a.Name+`"`)
			} else {
				require.NoError(t, err)
			}
		}
	}
	require.Empty(t, list(t, store, deadletter.QueueOf(a.Queue("empty"))))
	for _, d := range testapp.Take(t, queue, 5) {
		assert.NotEqual(t, looksCount(t), d.Redelivered)
	}
}

// TestAloneALetterThatCannotBeReplaced stays, ends no list, and its refusal doubles no other letter: the broker refuses a
// body above max_message_size, and closes the channel.
func TestAloneALetterThatCannotBeReplaced(t *testing.T) {
	broker.Alone(t) // max_message_size is that of the node
	const count, limit, usual = 10, 64 << 10, 16 << 20
	set := func(size int) {
		const change = "application:set_env(rabbit, max_message_size, %[1]d), persistent_term:put(max_message_size, %[1]d)."
		broker.Ctl(t, "eval", fmt.Sprintf(change, size))
	}
	a := testapp.New(t)
	work := a.Queue("orders")
	queue := deadletter.QueueOf(work)
	a.Declare(work)
	all := dead(work, count)
	all[4].Body = make([]byte, 2*limit)
	testapp.Send(t, a.Name, "dead."+work, all...)
	set(limit)
	t.Cleanup(func() { set(usual) })
	store := open(t, broker.URL(t), a.Name)
	for i := range 5 {
		var seen []string
		var failed error
		for l, err := range store.Browse(t.Context(), queue, letters.Filter{}) {
			if failed = err; err == nil {
				seen = append(seen, l.ID)
			}
		}
		require.Equal(t, count, testapp.Depth(t, queue))
		require.ElementsMatch(t, upTo(count), seen)
		if i > 0 && looksCount(t) {
			require.ErrorContains(t, failed, `letter "00004"`)
			require.ErrorContains(t, failed, "cannot be replaced by a copy, so it stays")
		} else {
			require.NoError(t, failed)
		}
	}
	for l, err := range store.Browse(t.Context(), queue, letters.Filter{}) { // a loop that ends early gets no error
		require.NoError(t, err)
		require.NotEmpty(t, l.ID)
		break
	}
	require.Equal(t, count, testapp.Depth(t, queue))
}

// TestAloneALookInAnAlarm: the broker takes no copies until the alarm ends. A look that may need them returns at once with
// what to do, and one that does not need them reads the letters.
func TestAloneALookInAnAlarm(t *testing.T) {
	a := testapp.New(t)
	queue := deadletter.QueueOf(a.Queue("orders"))
	bury(t, a, a.Queue("orders"), 5)
	config := deadletter.Config{URI: broker.URL(t), Prefix: a.Name}
	end := broker.Alarm(t)
	n, err := look(t, config, queue)
	if looksCount(t) {
		require.ErrorIs(t, err, publish.ErrBlocked)
		require.ErrorContains(t, err, "memory or disk alarm")
		require.ErrorContains(t, err, "--any-limit")
		require.Zero(t, n)
	} else {
		require.NoError(t, err)
	}
	config.AnyLimit = true
	n, err = look(t, config, queue)
	require.NoError(t, err)
	require.Equal(t, 5, n)
	n, err = look(t, config, queue)
	require.Equal(t, 5, n)
	if looksCount(t) {
		require.ErrorContains(t, err, "cannot be replaced by a copy, so it stays")
	}
	config.AnyLimit, config.Management = false, broker.ManagementURL(t)
	n, err = look(t, config, queue)
	require.NoError(t, err, "the limit is never reached")
	require.Equal(t, 5, n)
	end()
	config.Management = ""
	broker.Eventually(t, time.Minute, func() bool {
		n, err := look(t, config, queue)
		return err == nil && n == 5
	}, "a look after the alarm")
}

// TestARedriveAsksOnceForItsPermissions: a search for letters that died again needs what the redrive has found before.
// Here the user may not write copies any more when another letter arrives.
func TestARedriveAsksOnceForItsPermissions(t *testing.T) {
	t.Parallel()
	a := testapp.New(t)
	work := a.Queue("orders")
	bury(t, a, work, 3)
	_, err := broker.Channel(t).Consume(work, "", true, false, false, false, nil) // a canary needs a consumer
	require.NoError(t, err)
	user := broker.User(t, ".*", "^(amq.default|"+a.Name+")$", ".*")
	revoke := sync.OnceFunc(func() {
		_, err := broker.Management(t).UpdatePermissionsIn("/", user, rabbithole.Permissions{
			Configure: ".*", Write: "^amq.default$", Read: ".*",
		})
		assert.NoError(t, err)
		testapp.Send(t, a.Name, "dead."+work, dead(work, 1)...)
	})
	store := open(t, broker.WithUser(t, user, user), a.Name)
	summary, err := store.Redrive(t.Context(), deadletter.QueueOf(work), letters.Redrive{
		Canary: 1, CanaryWait: time.Second, Progress: func(p letters.Progress) {
			if p.Phase == letters.Watching {
				revoke()
			}
		},
	})
	if err != nil { // a search that finds the letter again has to replace it
		require.ErrorContains(t, err, "cannot be replaced by a copy, so it stays")
	}
	require.Equal(t, letters.Summary{Total: 3, Done: 3}, summary)
}

// limitByPolicy sets a delivery limit, and waits until the management API states it.
func limitByPolicy(t *testing.T, queue string, limit int) {
	t.Helper()
	testapp.PutPolicy(t, queue, "^"+regexp.QuoteMeta(queue)+"$", fmt.Sprintf(`{"delivery-limit": %d}`, limit))
	broker.Eventually(t, time.Minute, func() bool {
		info, err := broker.Management(t).GetQueue("/", queue)
		return err == nil && info.Policy == queue
	}, "the policy")
}

// stated waits until the management API states the policies of a queue. It does not do so in the first seconds.
func stated(t *testing.T, queue string) {
	t.Helper()
	client := managementOf(t)
	broker.Eventually(t, time.Minute, func() bool {
		q, err := client.Limits(t.Context(), queue)
		return err == nil && q.Effective != nil
	}, "the policies of %s", queue)
}

func managementOf(t *testing.T) *management.Client {
	t.Helper()
	client, err := management.New(broker.ManagementURL(t), management.Broker{Vhost: "/"})
	require.NoError(t, err)
	return client
}

// looksCount reports whether the broker counts a delivery of a letter that is given back.
func looksCount(t *testing.T) bool { return broker.Version(t) < 403 }

// TestNoLookAtAnAutoDeleteQueue: the broker would delete it, with its letters, when the consumer of the look ends.
func TestNoLookAtAnAutoDeleteQueue(t *testing.T) {
	t.Parallel()
	queue := broker.Name(t, "poison")
	broker.Clean(t, queue)
	_, err := broker.Channel(t).QueueDeclare(queue, true, true, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, broker.Channel(t).Publish("", queue, true, false, amqp091.Publishing{}))
	store, err := deadletter.Open(deadletter.Config{URI: broker.URL(t), Management: broker.ManagementURL(t)}, nil)
	require.NoError(t, err)
	defer store.Close()
	broker.Eventually(t, time.Minute, func() bool {
		_, err := broker.Management(t).GetQueue("/", queue)
		return err == nil
	}, "the management API has the queue")
	for _, err := range store.Browse(t.Context(), queue, letters.Filter{}) {
		require.ErrorContains(t, err, "auto-delete")
	}
	assert.Equal(t, 1, testapp.Depth(t, queue))
}

package inbox

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
)

func TestConfigReportsAllFaults(t *testing.T) {
	t.Parallel()
	for _, good := range []Config{
		{}, {Table: "inbox_2"}, {Table: "app.inbox", Retention: 2 * time.Minute, Wait: 1},
		{Table: strings.Repeat("a", 50)},
	} {
		assert.NoError(t, good.Validate(), "%+v", good)
	}
	for _, table := range []string{
		"a b", "a;drop table b", `"a"`, "Inbox", "a.b.c", ".a", "a.", "1a", strings.Repeat("a", 51), "ä", "a\n",
	} {
		assert.ErrorContains(t, Config{Table: table}.Validate(), "Config.Table is", "%q", table)
	}
	err := Config{Table: "?", Retention: time.Minute, Wait: -1}.Validate()
	assert.ErrorContains(t, err, "Config.Table is")
	assert.ErrorContains(t, err, "Config.Retention is 1m0s: it must be at least 2m0s")
	assert.ErrorContains(t, err, "Config.Wait is -1ns")
	assert.Error(t, Config{Retention: -time.Hour}.Validate())
}

func TestSchemaHasTheTable(t *testing.T) {
	t.Parallel()
	assert.Contains(t, Schema(""), "CREATE TABLE IF NOT EXISTS watermill_inbox (")
	assert.Contains(t, Schema("app.orders"), "CREATE TABLE IF NOT EXISTS app.orders (")
}

// inside returns a message as a retry middleware passes it on.
func inside(s *msgctx.Subscription) *message.Message {
	msg := message.NewMessageWithContext(msgctx.NewContext(context.Background(), s), "1", nil)
	msgctx.Lookup(msg).Called()
	return msg
}

// What can be seen to be wrong is refused before the database is asked: it has none here.
func TestWrongWiresAreRefused(t *testing.T) {
	t.Parallel()
	b := &Inbox{}
	for name, row := range map[string]struct {
		change func(*message.Message)
		want   error
	}{
		"outside of the retry middleware": {func(msg *message.Message) { msgctx.Lookup(msg).Failed() }, errOutside},
		"outside of that of a builder": {func(msg *message.Message) {
			msg.SetContext(context.Background())
			msg.Metadata.Set(msgctx.BuilderKey, "token")
		}, errOutside},
		"twice": {func(msg *message.Message) {
			msg.SetContext(context.WithValue(msg.Context(), handleKey{}, "a transaction"))
		}, errNested},
		"without a UUID": {func(msg *message.Message) { msg.UUID = "" }, errNoID},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			msg := inside(&msgctx.Subscription{})
			row.change(msg)
			_, err := b.Middleware(func(*message.Message) ([]*message.Message, error) {
				require.Fail(t, "the handler was called")
				return nil, nil
			})(msg)
			require.ErrorIs(t, err, row.want)
			assert.Equal(t, row.want != errOutside, backoff.IsPermanent(err), "no retry mends it")
		})
	}
}

// A message that is passed on to another topic or group keeps its UUID, and is another one for its consumer there.
func TestKeyHasTheConsumer(t *testing.T) {
	t.Parallel()
	queued := inside(&msgctx.Subscription{Queue: "orders_billing"})
	assert.Equal(t, key{consumer: "orders_billing", id: "1"}, keyOf(queued, msgctx.Lookup(queued)))
	ofBuilder := message.NewMessage("1", nil)
	ofBuilder.SetContext(msgctx.WithQueue(t.Context(), func(topic string) string { return topic + "orders_billing" }))
	assert.Equal(t, key{consumer: "orders_billing", id: "1"}, keyOf(ofBuilder, nil), "an app can leave the builder")
	returned := inside(&msgctx.Subscription{})
	returned.SetContext(msgctx.WithOrigin(returned.Context(), "orders", "billing"))
	assert.Equal(t, key{consumer: "billing of orders", id: "1"}, keyOf(returned, msgctx.Lookup(returned)))
}

// table stands for a table of so many slices, and counts how often each is looked at.
type table struct {
	DB
	looked []int
}

func (*table) CheckDriver(context.Context) error { return nil }

func (*table) Begin(context.Context, func(), string, ...any) (Tx, any, string, error) {
	return ended{}, nil, "", nil
}

type ended struct{ Tx }

func (ended) Rollback() error { return nil }

func (t *table) Int(_ context.Context, _ string, args ...any) (int64, error) {
	slices := int64(len(t.looked))
	t.looked[args[1].(int64)%slices]++
	return slices, nil
}

// However many slices a table has, all of it is looked at eight times in a retention, and once a minute at least.
func TestPaceOfTheDeletions(t *testing.T) {
	t.Parallel()
	for slices, least := range map[int]int{1: 60, 10: 8, 1000: 8} {
		synctest.Test(t, func(t *testing.T) {
			db := &table{looked: make([]int, slices)}
			b, err := New(db, Config{Retention: time.Hour}, nil)
			require.NoError(t, err)
			for end := time.Now().Add(time.Hour + time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				b.sweep(t.Context())
			}
			for _, n := range db.looked {
				assert.GreaterOrEqual(t, n, least)
				assert.LessOrEqual(t, n, least+1)
			}
		})
	}
}

// served is a database whose first statement takes a while, and whose transactions it notes.
type served struct {
	DB
	takes time.Duration
	ended []string
}

func (*served) CheckDriver(context.Context) error { return nil }

func (*served) Int(context.Context, string, ...any) (int64, error) { return 1, nil }

func (s *served) Begin(context.Context, func(), string, ...any) (Tx, any, string, error) {
	time.Sleep(s.takes)
	return transaction{served: s}, "handle", "1", nil
}

type transaction struct {
	Tx
	*served
}

func (t transaction) Commit(context.Context, string, ...any) error {
	t.served.ended = append(t.served.ended, "commit")
	return nil
}

func (t transaction) Rollback() error {
	t.served.ended = append(t.served.ended, "rollback")
	return nil
}

// A message is taken for handled where its handler has succeeded, and only there.
func TestWhatIsCommitted(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		takes  time.Duration // the first statement
		nacks  bool
		called bool
		ended  string
	}{
		"a success":                          {called: true, ended: "commit"},
		"a nack, without an error":           {called: true, nacks: true, ended: "rollback"},
		"a transaction that begins too late": {takes: time.Minute, ended: "rollback"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db, called := &served{}, false
				b, err := New(db, Config{Wait: 10 * time.Second}, nil)
				require.NoError(t, err)
				db.takes, db.ended = row.takes, nil
				_, err = b.Middleware(func(msg *message.Message) ([]*message.Message, error) {
					called = true
					if row.nacks {
						msg.Nack()
					}
					return nil, nil
				})(inside(&msgctx.Subscription{}))
				assert.Equal(t, row.takes == 0, err == nil, "%v", err)
				assert.Equal(t, row.called, called)
				assert.Equal(t, []string{row.ended}, db.ended)
			})
		})
	}
}

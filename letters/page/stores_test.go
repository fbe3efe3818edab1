package page_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/page"
	"github.com/tieredretry/watermill-retry/retry"
)

// over returns a page over a store on RabbitMQ and one on Redis.
func over(t *testing.T, change func(rabbit, redis *page.Config)) (all, rabbit, redis site) {
	t.Helper()
	var configs [2]page.Config
	stores := [2]site{setup(t, some(), nil), setup(t, many(5), nil)}
	for i := range stores {
		configs[i] = page.Config{
			Store: stores[i].store, AllowWrite: true,
			Status: func(context.Context) (letters.Status, error) { return status(), nil },
		}
	}
	if change != nil {
		change(&configs[0], &configs[1])
	}
	for i := range stores {
		var err error
		stores[i].page, err = page.New(configs[i])
		require.NoError(t, err)
	}
	shown, err := page.Over(map[string]*page.Page{"rabbit": stores[0].page, "redis": stores[1].page})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, shown.Close()) })
	return site{t, shown, nil}, stores[0], stores[1]
}

func TestFirstViewOverStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, rabbit, redis := over(t, nil)
		text := body(t, all.get(""), http.StatusOK)
		for _, want := range []string{`href="@rabbit/"`, `href="@redis/"`, "<dt>Dead</dt><dd>7</dd>", "No letters were looked at yet"} {
			assert.Contains(t, text, want)
		}
		assert.Zero(t, rabbit.store.browses+redis.store.browses, "the first view takes no letter")

		answer := all.get("causes")
		assert.Equal(t, http.StatusSeeOther, answer.Code)
		assert.Equal(t, "./", answer.Header().Get("Location"))
		assert.Equal(t, 2, rabbit.store.browses)
		assert.Equal(t, 2, redis.store.browses, "the queue of the orphans fails, which hides nothing")
		for _, address := range []string{"", "?part=1"} {
			text = body(t, all.get(address), http.StatusOK)
			for _, want := range []string{
				"card &lt;n&gt; was declined", "8801ed07", "10 letters", `href="@rabbit/letters?cause=8801ed07&amp;dead_reason=exhausted&amp;queue=orders.dead`,
				">5 in <bdi>redis</bdi>", "Oldest letter", `<svg class="hist"`,
			} {
				assert.Contains(t, text, want, address)
			}
		}
		assert.Contains(t, body(t, all.get("@rabbit/letters?cause=8801ed07&queue=orders.dead"), http.StatusOK), "Letters 1 to 5 of 5")
		assert.Contains(t, body(t, all.get("@redis/"), http.StatusOK), `<a href="../">All stores</a>`)
		assert.Equal(t, http.StatusOK, all.get("@redis/style.css").Code)
		assert.Equal(t, http.StatusOK, all.get("style.css").Code)
		for _, address := range []string{"letters?queue=orders.dead", "job?id=1", "@none/letters?queue=orders.dead"} {
			assert.Equal(t, http.StatusNotFound, all.get(address).Code, address)
		}
		assert.Equal(t, http.StatusNotFound, all.post("redrive?queue=orders.dead&all=1", nil).Code)
		assert.Equal(t, http.StatusForbidden, all.do(request("causes", "Sec-Fetch-Site", "cross-site")).Code)
		assert.Equal(t, http.StatusForbidden, all.do(request("@redis/causes?queue=orders.dead", "Sec-Fetch-Site", "cross-site")).Code)

		id := all.confirmed(all.post("@redis/redrive?queue=orders.dead&all=1", nil))
		assert.Equal(t, http.StatusSeeOther, all.post("@redis/redrive", map[string][]string{"step": {"start"}, "run": {id}}).Code)
		redis.ended(id)
		assert.Equal(t, []string{`redis: Redrive "orders.dead": total=5 done=5 other=0 kept=0 unseen=0 redead=0 doubtful=0`}, all.page.Summaries())
	})
}

// TestFirstViewForgetsWhatIsGone: the causes of letters that were redriven meanwhile end with the next look.
func TestFirstViewForgetsWhatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := status()
		all, _, _ := over(t, func(rabbit, redis *page.Config) {
			rabbit.Status = func(context.Context) (letters.Status, error) { return now, nil }
			redis.Status = func(context.Context) (letters.Status, error) { return letters.Status{}, nil }
		})
		all.get("causes")
		assert.Contains(t, all.get("").Body.String(), "8801ed07")
		now = letters.Status{}
		time.Sleep(2 * time.Second)
		all.get("causes")
		text := all.get("").Body.String()
		assert.NotContains(t, text, "8801ed07")
		assert.Contains(t, text, "No letters were looked at yet.")
	})
}

func TestFirstViewShowsWhatIsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead, failed := 7, error(nil)
		all, _, _ := over(t, func(rabbit, redis *page.Config) {
			rabbit.Status = func(context.Context) (letters.Status, error) {
				now := status()
				now.Queues[0].Dead.Messages = dead
				return now, failed
			}
			redis.Status = func(context.Context) (letters.Status, error) { return letters.Status{}, nil }
		})
		assert.NotContains(t, all.get("").Body.String(), "new in")
		time.Sleep(time.Minute)
		dead = 10
		assert.Contains(t, all.get("").Body.String(), "3 new in 1 min")
		time.Sleep(time.Minute)
		dead = 2 // redriven
		assert.Contains(t, all.get("").Body.String(), "3 new in 2 min")
		time.Sleep(time.Minute)
		dead = 4
		assert.Contains(t, all.get("").Body.String(), "5 new in 3 min")
		time.Sleep(9 * time.Minute)
		assert.Contains(t, all.get("").Body.String(), "2 new in 10 min")
		failed = errors.New("the broker is away")
		time.Sleep(time.Minute)
		assert.Contains(t, all.get("").Body.String(), "the broker is away")
	})
}

func TestOverRefuses(t *testing.T) {
	one := setup(t, some(), nil).page
	for name, pages := range map[string]map[string]*page.Page{
		"no pages": {}, `pages[""]`: {"": one}, `pages["a/b"]`: {"a/b": one}, `pages["nil"]`: {"nil": nil},
	} {
		_, err := page.Over(pages)
		require.ErrorContains(t, err, name)
	}
}

// TestCausesShowWhenTheirLettersDied: an operator sees the moment of a deploy, and what a redrive has not repaired.
func TestCausesShowWhenTheirLettersDied(t *testing.T) {
	start := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	s := setup(t, func(yield func(*letters.Letter) bool) {
		for i := range 80 {
			l := letter("order", "card 1 was declined")
			l.Record.LastFailedAt = start.Add(time.Duration(i) * time.Minute / 2)
			if i >= 60 {
				l.Record.Reason, l.Redriven = "no money", letters.Redriven{Times: 2}
			}
			if !yield(l) {
				return
			}
		}
		yield(&letters.Letter{ID: "unknown", Record: retry.Record{Reason: "no time"}})
	}, nil)
	text := body(t, s.get("causes?queue=orders.dead"), http.StatusOK)
	for _, want := range []string{
		"2026-05-04 12:00:00 UTC", "2026-05-04 12:39:30 UTC", "2 died in the 1 min from 2026-05-04 12:00:00 UTC",
		"20 letters were redriven before, 40 times together", `<rect x="117" y="0" width="2" height="20">`,
	} {
		assert.Contains(t, text, want)
	}
	assert.NotContains(t, text, "60 letters were redriven")
}

// lookingStore is one of a backend that is not RabbitMQ.
type lookingStore struct {
	*store
	operate.Part
}

type looker struct {
	operate.Operator
	waiting []operate.Waiting
}

func (l looker) Waiting(context.Context) ([]operate.Waiting, error) { return l.waiting, nil }

// TestBoardOfOtherBackends: what waits is there without a Status of the app, and the letters can be looked at.
func TestBoardOfOtherBackends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		none := 0
		s := setup(t, some(), func(c *page.Config) {
			c.Status, c.Queues = nil, nil
			c.Store = lookingStore{c.Store.(*store), operate.PartOf(looker{waiting: []operate.Waiting{
				{Name: "billing.orders", Topic: queue, Retries: 40, InFlight: 3, Dead: 7, NextDue: time.Now().Add(90 * time.Second), OldestDead: time.Now().Add(-3 * time.Hour)},
				{Name: "printing.orders", Topic: "retry.dead.printing.orders", Retries: 5, Overdue: 2, Consumers: &none},
				{Name: "10s", Retries: 6},
			}})}
		})
		text := body(t, s.get("?part=1"), http.StatusOK)
		for _, want := range []string{
			"billing.orders", "<dt>Handled</dt><dd>3</dd>", "<dt>Waiting</dt><dd>40</dd>", `href="causes?queue=orders.dead"`, "Oldest dead letter",
			"3 h ago", "2 overdue", "due within 1 min", `<span class="big">51</span> waiting`,
		} {
			assert.Contains(t, text, want)
		}
		assert.NotContains(t, text, "<dt>Ready</dt>")
		assert.Equal(t, 1, strings.Count(text, "no consumer"), "where it is known")
		assert.Contains(t, body(t, s.get("causes?queue=orders.dead"), http.StatusOK), "card &lt;n&gt; was declined")
		assert.Equal(t, http.StatusNotFound, s.get("causes?queue=").Code)
		assert.Equal(t, http.StatusNotFound, s.get("causes?queue=other").Code)
	})
}

// TestStoreOfAnAppHasNoDepths: the queues that the app names can be looked at.
func TestStoreOfAnAppHasNoDepths(t *testing.T) {
	s := setup(t, some(), func(c *page.Config) { c.Status, c.Queues = nil, []string{queue} })
	assert.Contains(t, body(t, s.get(""), http.StatusOK), `href="causes?queue=orders.dead"`)
	assert.Contains(t, body(t, s.get("causes?queue=orders.dead"), http.StatusOK), "All 7 letters")
}

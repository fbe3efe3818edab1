package page_test

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/page"
)

const declined = "redrive?queue=orders.dead&cause=8801ed07&dead_reason=exhausted"

func TestRedriveAsksWithTheNumber(t *testing.T) {
	s := setup(t, some(), func(c *page.Config) { c.By = func(r *http.Request) string { return r.Header.Get("X-User") } })
	check := form(declined+"&reason=not+what+they+died+of", nil)
	check.Header.Set("X-User", "ada")
	answer := s.do(check)
	text := answer.Body.String()
	id := s.confirmed(answer)
	assert.Contains(t, text, "Redrive <span id=\"count\">5 letters</span>?")
	assert.Contains(t, text, "10 letters are sent first and watched")
	assert.Contains(t, text, "when more than 5% die again")
	assert.NotContains(t, text, "died of", "the confirmation has nothing of a link that selects nothing")
	assert.Empty(t, s.store.redrives, "nothing is sent before the confirmation")

	answer = s.post("redrive", url.Values{"step": {"start"}, "run": {id}})
	assert.Equal(t, http.StatusSeeOther, answer.Code)
	assert.Equal(t, "job?id="+id, answer.Header().Get("Location"))
	text = s.ended(id)
	assert.Contains(t, text, `<dd id="done">5</dd>`)
	assert.Contains(t, text, "Done.")
	require.Len(t, s.store.redrives, 1)
	got := s.store.redrives[0]
	got.Progress = nil
	assert.Equal(t, letters.Redrive{
		Filter: letters.Filter{Cause: "8801ed07", DeadReason: "exhausted"},
		Limit:  5, Rate: 50, Canary: 10, MaxRedead: 0.05, By: "ada",
	}, got, "the limit is the number that was confirmed")

	// A second click, or a reload, starts nothing.
	assert.Equal(t, http.StatusSeeOther, s.post("redrive", url.Values{"step": {"start"}, "run": {id}}).Code)
	assert.Len(t, s.store.redrives, 1)
	assert.Equal(t, []string{`Redrive "orders.dead": total=7 done=5 other=2 kept=0 unseen=0 redead=0 doubtful=0`}, s.page.Summaries())
}

// TestNoSelectionIsNotAll: a form without a picked letter must not send the whole queue.
func TestNoSelectionIsNotAll(t *testing.T) {
	s := setup(t, some(), nil)
	for _, change := range []string{"redrive", "discard"} {
		for _, step := range []string{"", "check"} {
			answer := s.post(change+"?queue=orders.dead", url.Values{"step": {step}})
			assert.Contains(t, body(t, answer, http.StatusBadRequest), "No letter is selected", change)
		}
	}
	for _, step := range []string{"start"} {
		assert.Equal(t, http.StatusConflict, s.post("redrive?queue=orders.dead&all=1", url.Values{"step": {step}}).Code)
		assert.Equal(t, http.StatusConflict, s.post("discard?queue=orders.dead&all=1", url.Values{"step": {step}, "sure": {"yes"}, "run": {"0123456789abcdef"}}).Code)
	}
	assert.Contains(t, body(t, s.post("redrive?queue=orders.dead&id=order-99", url.Values{"step": {"check"}}), http.StatusNotFound), "No letter of the queue is selected")
	assert.Empty(t, s.store.redrives)
	assert.Empty(t, s.store.discards)
}

func TestDiscardNeedsTheBox(t *testing.T) {
	s := setup(t, some(), nil)
	id := s.confirmed(s.post("discard?queue=orders.dead", url.Values{"pick": {"order-1", "order-2"}}))
	body(t, s.post("discard", url.Values{"step": {"start"}, "run": {id}}), http.StatusUnprocessableEntity)
	assert.Empty(t, s.store.discards)
	assert.Equal(t, http.StatusSeeOther, s.post("discard", url.Values{"step": {"start"}, "run": {id}, "sure": {"yes"}}).Code)
	assert.Contains(t, s.ended(id), "Ended. 2 letters were discarded.")
	require.Len(t, s.store.discards, 1)
	assert.Equal(t, []string{"order-1", "order-2"}, s.store.discards[0].Filter.IDs)
	assert.Equal(t, 2, s.store.discards[0].Limit)
}

// TestConfirmationsAreOfTheirKind: the ID of a redrive's confirmation does not start a discard without its box, and the other way round
// the box stays needed.
func TestConfirmationsAreOfTheirKind(t *testing.T) {
	s := setup(t, some(), nil)
	id := s.confirmed(s.post("discard?queue=orders.dead&all=1", nil))
	body(t, s.post("redrive", url.Values{"step": {"start"}, "run": {id}}), http.StatusConflict)
	assert.Empty(t, s.store.discards)
}

func TestProgressAndStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := setup(t, some(), nil)
		s.store.before = func(ctx context.Context, progress func(letters.Progress)) error {
			progress(letters.Progress{Phase: letters.Watching, Until: time.Now().Add(time.Minute), Summary: letters.Summary{Total: 7, Done: 2, Other: 1, Unseen: 4}})
			<-ctx.Done()
			return ctx.Err()
		}
		id := s.confirmed(s.post("redrive?queue=orders.dead&all=1", url.Values{"step": {"check"}}))
		require.Equal(t, http.StatusSeeOther, s.post("redrive", url.Values{"step": {"start"}, "run": {id}}).Code)
		require.Eventually(t, func() bool {
			text := body(t, s.get("job?id="+id), http.StatusOK)
			return strings.Contains(text, "Watching whether the canary dies again.") && strings.Contains(text, `value="42"`)
		}, 30*time.Second, 5*time.Millisecond)
		assert.Contains(t, body(t, s.get(""), http.StatusOK), "42%")
		assert.Equal(t, http.StatusSeeOther, s.post("stop", url.Values{"run": {id}}).Code)
		text := s.ended(id)
		assert.Contains(t, text, "Letters that were not sent or removed stay.")
		assert.NotContains(t, text, `action="stop"`)
		assert.Equal(t, http.StatusNotFound, s.post("stop", url.Values{"run": {"0123456789abcdef"}}).Code)
	})
}

func TestEndsAreExplained(t *testing.T) {
	for want, err := range map[string]error{
		"letters have died again": letters.ErrRedead, "Another redrive or discard runs": letters.ErrBusy, "Start the app": letters.ErrNoTarget,
	} {
		s := setup(t, some(), nil)
		s.store.before = func(context.Context, func(letters.Progress)) error { return err }
		id := s.confirmed(s.post("redrive?queue=orders.dead&all=1", url.Values{"step": {"check"}}))
		s.post("redrive", url.Values{"step": {"start"}, "run": {id}})
		assert.Contains(t, s.ended(id), want)
		assert.Contains(t, body(t, s.get(""), http.StatusOK), `class="badtext"`)
	}
}

// TestLettersThatCameLaterStay: the number of the confirmation is the limit, and the page explains what is not looked at,
// and what is not known of a canary.
func TestLettersThatCameLaterStay(t *testing.T) {
	s := setup(t, some(), nil)
	id := s.confirmed(s.post("redrive?queue=orders.dead&all=1", url.Values{"step": {"check"}}))
	s.store.after = func(summary *letters.Summary) {
		summary.Total, summary.Unseen, summary.CanaryUnknown = summary.Total+3, 3, true
	}
	s.post("redrive", url.Values{"step": {"start"}, "run": {id}})
	text := s.ended(id)
	assert.Contains(t, text, "3 letters were not looked at, and stay: 7 letters were counted for the confirmation, and no more than that are sent.")
	assert.Contains(t, text, `max="100" value="100"`)
	assert.Contains(t, text, "It is not known whether the canary was handled")
	assert.Contains(t, s.page.Summaries()[0], "canary_unknown=true")
}

// TestCloseStopsWhatRuns: the process ends with a summary.
func TestCloseStopsWhatRuns(t *testing.T) {
	s := setup(t, some(), nil)
	running := make(chan struct{})
	s.store.before = func(ctx context.Context, _ func(letters.Progress)) error {
		close(running)
		<-ctx.Done()
		return ctx.Err()
	}
	id := s.confirmed(s.post("redrive?queue=orders.dead&all=1", url.Values{"step": {"check"}}))
	later := s.confirmed(s.post("redrive?queue=orders.dead&all=1", url.Values{"step": {"check"}}))
	s.post("redrive", url.Values{"step": {"start"}, "run": {id}})
	<-running
	require.NoError(t, s.page.Close())
	require.NoError(t, s.page.Close())
	require.Len(t, s.page.Summaries(), 1)
	assert.Contains(t, s.page.Summaries()[0], "context canceled")
	assert.Equal(t, http.StatusBadGateway, s.post("redrive", url.Values{"step": {"start"}, "run": {later}}).Code)
}

// asking is a logger that asks the page at each line.
type asking struct {
	watermill.LoggerAdapter
	page  *page.Page
	lines chan string
}

func (a *asking) Info(line string, fields watermill.LogFields) {
	a.page.Summaries()
	a.lines <- fmt.Sprint(line, ": ", cmp.Or(fields["summary"], fields["by"]))
}

func TestALoggerMayAskForTheSummaries(t *testing.T) {
	logger := &asking{watermill.NopLogger{}, nil, make(chan string, 2)}
	s := setup(t, some(), func(c *page.Config) { c.Logger = logger })
	logger.page = s.page
	id := s.confirmed(s.post("redrive?queue=orders.dead&all=1", url.Values{"step": {"check"}}))
	s.post("redrive", url.Values{"step": {"start"}, "run": {id}})
	for _, want := range []string{"Redrive was started on the dead-letter page: ", "Redrive of the dead-letter page has ended: Redrive"} {
		assert.Contains(t, <-logger.lines, want)
	}
}

// TestJobsAreBounded: neither what runs nor what is kept grows without end.
func TestJobsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := setup(t, some(), func(c *page.Config) { c.Timeout = time.Second }) // a count waits for the turn of the jobs
		start := func() (string, int) {
			id := s.confirmed(s.post("redrive?queue=orders.dead&all=1", url.Values{"step": {"check"}}))
			return id, s.post("redrive", url.Values{"step": {"start"}, "run": {id}}).Code
		}
		for range 30 {
			id, _ := start()
			s.ended(id)
		}
		assert.Len(t, s.page.Summaries(), 20)
		s.store.before = func(ctx context.Context, _ func(letters.Progress)) error { <-ctx.Done(); return nil }
		for range 8 {
			_, code := start()
			assert.Equal(t, http.StatusSeeOther, code)
		}
		_, code := start()
		assert.Equal(t, http.StatusServiceUnavailable, code)
	})
}

package page_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter/page"
)

// TestOneLookAtATime: a view and a redrive do not begin while another view has the letters of the queue, which they would not see.
func TestOneLookAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := setup(t, nil, func(c *page.Config) { c.Timeout = 250 * time.Millisecond })
		looks, release := make(chan struct{}), make(chan struct{})
		s.store.letters = func(yield func(*letters.Letter) bool) {
			close(looks)
			<-release
			yield(letter("one", "reason"))
		}
		first := make(chan struct{})
		go func() {
			defer close(first)
			s.get("causes?queue=orders.dead")
		}()
		<-looks
		for _, view := range []string{"causes?queue=orders.dead", "letters?queue=orders.dead&all=1", "letter?queue=orders.dead&id=one",
			"test?queue=orders.dead&id=one"} {
			assert.Contains(t, body(t, s.ask(view), http.StatusServiceUnavailable), "The queue is busy", view)
		}
		id := s.confirmed(s.post("redrive?queue=orders.dead&all=1", url.Values{"step": {"check"}}))
		require.Equal(t, http.StatusSeeOther, s.post("redrive", url.Values{"step": {"start"}, "run": {id}}).Code)
		assert.Contains(t, body(t, s.ask("causes?queue=orders.dead"), http.StatusServiceUnavailable), "a redrive or discard, has its letters")
		require.Equal(t, http.StatusSeeOther, s.post("stop", url.Values{"run": {id}}).Code)
		s.ended(id)
		s.store.lock.Lock()
		assert.Equal(t, 1, s.store.browses)
		assert.Zero(t, s.store.dry)
		assert.Empty(t, s.store.redrives)
		s.store.lock.Unlock()

		close(release)
		<-first
		s.store.letters = some()
		assert.Contains(t, body(t, s.get("causes?queue=orders.dead"), http.StatusOK), "All 7 letters")
	})
}

// TestALetterThatWasNotReachedIsNotMissing: the look that did not find it has not seen all letters.
func TestALetterThatWasNotReachedIsNotMissing(t *testing.T) {
	t.Parallel()
	for failed, want := range map[error]struct {
		status int
		text   string
	}{
		context.DeadlineExceeded: {http.StatusServiceUnavailable, "The time for looking was over after 7 letters"},
		errors.New("unreadable"): {http.StatusBadGateway, "unreadable"},
	} {
		s := setup(t, some(), nil)
		s.store.failed = failed
		assert.Contains(t, body(t, s.ask("letter?queue=orders.dead&id=absent"), want.status), want.text)
	}
}

package page_test

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter/page"
)

// TestOneLookAtATime: a view and a redrive do not begin while another view has the letters of the queue, which they would not see.
func TestOneLookAtATime(t *testing.T) {
	t.Parallel()
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
	assert.Contains(t, body(t, s.get("causes?queue=orders.dead"), http.StatusOK), "The time for looking was over")
	assert.Contains(t, body(t, s.get("letters?queue=orders.dead&all=1"), http.StatusOK), "The first 0 letters")
	id := s.confirmed(s.post("redrive?queue=orders.dead&all=1", url.Values{"step": {"check"}}))
	require.Equal(t, http.StatusSeeOther, s.post("redrive", url.Values{"step": {"start"}, "run": {id}}).Code)
	assert.Contains(t, body(t, s.get("causes?queue=orders.dead"), http.StatusOK), "A redrive or discard runs on this queue")
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
}

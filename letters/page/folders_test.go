package page_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/page"
)

// TestAnyNameOfAStoreIsAnAddress: a virtual host, or a database, can have such a name.
func TestAnyNameOfAStoreIsAnAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		odd, plain := setup(t, many(5), nil), setup(t, some(), nil)
		shown, err := page.Over(map[string]*page.Page{"a?b#c%2f \\": odd.page, "a": plain.page})
		require.NoError(t, err)
		all := site{t, shown, nil}
		text := body(t, all.get(""), http.StatusOK)
		assert.Contains(t, text, `href="@a%3Fb%23c%252f%20%5C/"`)
		assert.Contains(t, body(t, all.get("@a%3Fb%23c%252f%20%5C/causes?queue=orders.dead"), http.StatusOK), "All 5 letters")
		assert.Contains(t, body(t, all.get("@a/causes?queue=orders.dead"), http.StatusOK), "All 7 letters")
		assert.Contains(t, body(t, all.get(""), http.StatusOK), `href="@a%3Fb%23c%252f%20%5C/letters?cause=`)
	})
}

// TestASilentStoreKeepsNoOtherBack: its own page waits for it, the first view does not.
func TestASilentStoreKeepsNoOtherBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answers atomic.Bool
		all, _, _ := over(t, func(rabbit, _ *page.Config) {
			rabbit.Status = func(ctx context.Context) (letters.Status, error) {
				if !answers.Load() {
					<-ctx.Done()
				}
				return status(), ctx.Err()
			}
		})
		body(t, all.get("@redis/causes?queue=orders.dead"), http.StatusOK)
		began := time.Now()
		text := body(t, all.get(""), http.StatusOK)
		assert.Less(t, time.Since(began), 5*time.Second)
		assert.Contains(t, text, "The store has not answered yet.")
		assert.Contains(t, text, "<dt>Dead</dt><dd>7</dd>")
		assert.Contains(t, text, ">5 in <bdi>redis</bdi>")
		time.Sleep(time.Minute)
		answers.Store(true)
		assert.NotContains(t, body(t, all.get(""), http.StatusOK), "has not answered")
	})
}

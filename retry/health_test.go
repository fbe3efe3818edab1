package retry_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/retry"
)

func TestReadiness(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	open := retry.LinkHealth{Name: "publishing", Connected: true, Since: since}
	consuming := retry.SubscriptionHealth{Name: "billing", Topic: "orders", Queue: "orders", Consuming: true, Since: since}
	blocked, stopped := open, consuming
	blocked.Blocked = true // concerns all instances
	stopped.Consuming, stopped.LastError = false, "queue deleted"
	paused, limited := consuming, stopped
	paused.Consuming, paused.Paused = false, []string{"failing"}
	limited.Name, limited.Paused, limited.PausedLimit = "returns", []string{"failing"}, 1 // it would consume
	for want, health := range map[string]retry.Health{
		"200 ready\n": {Links: []retry.LinkHealth{open, blocked}, Subscriptions: []retry.SubscriptionHealth{consuming, paused}},
		"503 handler \"billing\" does not consume \"orders\" since 2026-01-02T03:04:05Z: queue deleted\n": {
			Subscriptions: []retry.SubscriptionHealth{stopped, consuming},
		},
		"503 handler \"returns\" does not consume \"orders\" since 2026-01-02T03:04:05Z: queue deleted\n": {
			Subscriptions: []retry.SubscriptionHealth{limited},
		},
		"503 the consuming connection is not open since 2026-01-02T03:04:05Z: refused\n": {
			Links: []retry.LinkHealth{{Name: "consuming", Since: since, LastError: "refused"}, open},
		},
	} {
		answer := httptest.NewRecorder()
		probe := httptest.NewRequest(http.MethodGet, "/ready", nil)
		retry.ReadinessHandler(func() retry.Health { return health }).ServeHTTP(answer, probe)
		assert.Equal(t, want, fmt.Sprint(answer.Code, " ", answer.Body.String()))
	}
}

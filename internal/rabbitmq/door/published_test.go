package door

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/failure"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestResultsOfAPublisher(t *testing.T) {
	of := func(kind, cause error) error { return &failure.Error{Err: kind, Cause: cause} }
	down := errors.New("the cause")
	type results map[backend.PublishResult]int
	for name, row := range map[string]struct {
		err      error
		messages int
		want     results
	}{
		"returned":               {of(publish.ErrUnroutable, down), 1, results{backend.PublishReturned: 1}},
		"one of three returned":  {of(publish.ErrUnroutable, down), 3, results{backend.PublishReturned: 1, backend.PublishConfirmed: 2}},
		"nacked":                 {of(publish.ErrNacked, nil), 1, results{backend.PublishNacked: 1}},
		"unconfirmed":            {of(publish.ErrNotConfirmed, down), 1, results{backend.PublishUnconfirmed: 1}},
		"connection lost":        {of(publish.ErrNotConnected, down), 1, results{backend.PublishUnconfirmed: 1}},
		"refused, none was sent": {of(publish.ErrRefused, down), 3, results{backend.PublishRefused: 1, backend.PublishFailed: 2}},
		"closed, none was sent":  {of(retry.ErrClosed, nil), 3, results{backend.PublishFailed: 3}},
		"no exchange":            {of(publish.ErrNotDeclared, down), 2, results{backend.PublishFailed: 2}},
		"not of the publisher":   {down, 2, results{backend.PublishFailed: 2}},
		"wrapped":                {fmt.Errorf("the app: %w", of(publish.ErrNacked, nil)), 1, results{backend.PublishNacked: 1}},
		"several of five":        {errors.Join(of(publish.ErrNacked, nil), of(publish.ErrUnroutable, down), of(publish.ErrNacked, nil)), 5, results{backend.PublishNacked: 2, backend.PublishReturned: 1, backend.PublishConfirmed: 2}},
		"several that were lost": {errors.Join(of(publish.ErrNotConnected, down), of(publish.ErrNotConnected, down)), 2, results{backend.PublishUnconfirmed: 2}},
		"refused, among several": {errors.Join(of(publish.ErrRefused, down), of(publish.ErrNacked, nil)), 3, results{backend.PublishRefused: 1, backend.PublishNacked: 1, backend.PublishConfirmed: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, row.want, results(resultsOf(row.err, row.messages)))
		})
	}
}

// What handlers produce goes to exchanges here: "invoices" has a queue, "mails" has none. Each is named once, also where
// the API does not answer at first.
func TestATopicThatNoQueueGetsIsNamedAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{sources: map[string]bool{"x.invoices": true}}
		api.broken.Store(true)
		c := &core{prefix: naming.Default, app: app.Config{
			ExchangeName: func(topic string) string { return "x." + topic },
			RoutingKey:   func(string) string { return "key" },
		}}
		l := newLookout(t.Context(), c, api, &noChannels{})
		log := watermill.NewCaptureLogger()
		warnings := func() (all []string) {
			synctest.Wait()
			for _, line := range log.Captured()[watermill.ErrorLogLevel] {
				all = append(all, line.Msg)
			}
			return all
		}
		var p produced
		p.add("billing", "invoices")
		p.add("notify", "mails")
		p.begin(l, appPublisher{core: c}, log)
		p.begin(l, appPublisher{core: c}, log)
		time.Sleep(2*producedAfter + time.Second)
		assert.Empty(t, warnings(), "the API has not answered")
		api.broken.Store(false)
		time.Sleep(producedAfter)
		assert.Equal(t, []string{`Handler "notify" produces messages for topic "mails", and no queue is bound to exchange ` +
			`"x.mails" with the routing key "key": a subscriber of topic "mails" must run once first, because it declares ` +
			`the queue. Until then its messages fail, and are retried`}, warnings())
		p.begin(l, appPublisher{core: c}, log)
		synctest.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		assert.False(t, p.looking, "nothing is left to look at")
	})
}

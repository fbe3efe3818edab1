package middleware_test

import (
	"errors"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	retrymw "github.com/tieredretry/watermill-retry/middleware"
)

func TestPanicIsAFailureWithItsFileAndLine(t *testing.T) {
	var failure error
	retry, sent := setup(t, func(c *retrymw.TieredRetryConfig) {
		c.Observe = func(e retrymw.Event) { failure = e.Err }
	})
	_, err := retry.Middleware(func(*message.Message) ([]*message.Message, error) { panic("boom") })(messageOf(routerContext(t)))
	require.NoError(t, err)
	reason := sent.only(t).msg.Metadata[retrymw.ReasonKey]
	assert.Contains(t, reason, "panic: boom")
	assert.Contains(t, reason, "panic_test.go:")
	var panicked *retrymw.PanicError
	require.ErrorAs(t, failure, &panicked)
	assert.Contains(t, string(panicked.Stack), "TestPanicIsAFailureWithItsFileAndLine")
}

func TestMessageIsSettledAfterGoexitOfTheHandler(t *testing.T) {
	ctx := routerContext(t)
	exiting := func(*message.Message) ([]*message.Message, error) { runtime.Goexit(); return nil, nil }

	t.Run("published", func(t *testing.T) {
		retry, sent := setup(t)
		msg := messageOf(ctx)
		go func() { _, _ = retry.Middleware(exiting)(msg) }()
		<-msg.Acked()
		assert.Equal(t, "1s.orders", sent.only(t).topic)
		assert.Equal(t, retrymw.ErrGoexit.Error(), sent.only(t).msg.Metadata[retrymw.ReasonKey])
	})
	t.Run("cannot be published", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			retry, sent := setup(t)
			sent.fail = func(int) error { return errors.New("no broker") }
			msg := messageOf(ctx)
			go func() { _, _ = retry.Middleware(exiting)(msg) }()
			<-msg.Nacked()
			assert.Empty(t, sent.copies)
		})
	})
}

func TestMessageIsSettledAfterGoexitOfAHookOrPublisher(t *testing.T) {
	ctx := routerContext(t)
	t.Run("hook", func(t *testing.T) {
		retry, sent := setup(t, func(c *retrymw.TieredRetryConfig) { c.Observe = func(retrymw.Event) { runtime.Goexit() } })
		msg := messageOf(ctx)
		go func() { _, _ = retry.Middleware(failing(errDown))(msg) }()
		<-msg.Acked()
		assert.Equal(t, "1s.orders", sent.only(t).topic)
	})
	t.Run("publisher", func(t *testing.T) {
		retry, sent := setup(t)
		sent.fail = func(int) error { runtime.Goexit(); return nil }
		msg := messageOf(ctx)
		go func() { _, _ = retry.Middleware(failing(errDown))(msg) }()
		<-msg.Nacked()
	})
}

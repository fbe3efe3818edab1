package observe

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

// tracer is a tracing middleware of the app: its span begins where the message's context is.
func tracer(r *recorder, name string) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) (produced []*message.Message, err error) {
			ctx, span := r.Tracer("app").Start(msg.Context(), name)
			defer span.End()
			msg.SetContext(ctx)
			if produced, err = h(msg); err != nil {
				span.SetStatus(codes.Error, err.Error())
			}
			return produced, err
		}
	}
}

// TestOrderTracingMiddleware: inside, the app's span is in the attempt and sees its failure. Outside, the attempt is in the app's span,
// which sees a success.
func TestOrderTracingMiddleware(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(t)
		app := retrytest.New(t, backoff.Schedule{time.Second})
		app.Observe(tracing{tracers: r})
		app.Router.AddMiddleware(tracer(r, "outside"))
		app.AddConsumerHandler(app.Router, "billing", "orders", func(*message.Message) error {
			return backoff.Permanent(errDown)
		}).AddMiddleware(tracer(r, "inside"))
		app.Send("orders", message.NewMessage("order-1", nil)).DeadLettered(retry.DeadReasonPermanent)
		outside, attempt, inside := r.only("outside"), r.only("process orders"), r.only("inside")
		assert.Equal(t, outside.SpanContext.SpanID(), attempt.Parent.SpanID())
		assert.Equal(t, attempt.SpanContext.SpanID(), inside.Parent.SpanID())
		assert.Equal(t, codes.Unset, outside.Status.Code)
		assert.Equal(t, codes.Error, attempt.Status.Code)
		assert.Equal(t, codes.Error, inside.Status.Code)
	})
}

// TestOrderOfWatermillsMiddlewares: the attempt has the failure that the retry middleware has seen.
func TestOrderOfWatermillsMiddlewares(t *testing.T) {
	t.Parallel()
	waits := func(msg *message.Message) error { <-msg.Context().Done(); return msg.Context().Err() }
	panics := func(*message.Message) error { panic("no") }
	for name, test := range map[string]struct {
		handler   message.NoPublishHandlerFunc
		inside    message.HandlerMiddleware
		outside   message.HandlerMiddleware
		errorType string
	}{
		"Timeout inside":      {handler: waits, inside: wmmiddleware.Timeout(time.Second), errorType: "context.deadlineExceededError"},
		"Timeout outside":     {handler: waits, outside: wmmiddleware.Timeout(time.Second), errorType: "context.deadlineExceededError"},
		"Recoverer outside":   {handler: panics, outside: wmmiddleware.Recoverer, errorType: "*retry.PanicError"},
		"Recoverer inside":    {handler: panics, inside: wmmiddleware.Recoverer, errorType: "*retry.PanicError"},
		"CorrelationID":       {handler: panics, inside: wmmiddleware.CorrelationID, outside: wmmiddleware.CorrelationID, errorType: "*retry.PanicError"},
		"IgnoreErrors inside": {handler: func(*message.Message) error { return errDown }, inside: wmmiddleware.NewIgnoreErrors([]error{errDown}).Middleware},
		"Watermill's own Retry": {
			handler: func(*message.Message) error { return errDown }, inside: wmmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Second}.Middleware,
			errorType: "*errors.errorString",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRecorder(t)
				app := retrytest.New(t, backoff.Schedule{time.Minute})
				app.Observe(tracing{tracers: r})
				if test.outside != nil {
					app.Router.AddMiddleware(test.outside)
				}
				handler := app.AddConsumerHandler(app.Router, "billing", "orders", test.handler)
				if test.inside != nil {
					handler.AddMiddleware(test.inside)
				}
				ctx, producer := r.start("checkout")
				producer.End()
				app.Send("orders", order(ctx))
				attempts := r.named("process orders")
				require.NotEmpty(t, attempts)
				for _, s := range attempts {
					assert.Equal(t, producer.SpanContext().TraceID(), s.SpanContext.TraceID())
					assert.Equal(t, test.errorType, attributesOf(s.Attributes)["error.type"])
				}
				if test.errorType != "" {
					assert.Len(t, attempts, 2, "one for each attempt of the retry middleware")
				}
			})
		})
	}
}

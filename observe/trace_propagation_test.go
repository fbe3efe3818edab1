package observe

import (
	"errors"
	"maps"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/retry"
)

func member(t *testing.T, text string) baggage.Baggage {
	t.Helper()
	b, err := baggage.Parse(text)
	require.NoError(t, err)
	return b
}

// TestPropagators: the attempt belongs to the producer's trace, and what the handler produces belongs to the attempt.
func TestPropagators(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		propagator propagation.TextMapPropagator
		key        string
	}{
		"default":          {nil, "traceparent"},
		"W3C":              {propagation.TraceContext{}, "traceparent"},
		"B3":               {b3{"b3"}, "b3"},
		"a vendor's own":   {b3{"uber-trace-id"}, "uber-trace-id"},
		"several at once":  {propagation.NewCompositeTextMapPropagator(b3{"b3"}, propagation.TraceContext{}), "b3"},
		"with its baggage": {propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}), "baggage"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecorder(t)
			config := Config{Propagator: test.propagator}
			hooks := traceObserver(r, config, backend.Observed{})
			ctx, producer := r.start("checkout")
			producer.End()
			msg := order(baggage.ContextWithBaggage(ctx, member(t, "tenant=7")), config)
			require.Contains(t, msg.Metadata, test.key)
			before := maps.Clone(msg.Metadata)

			begun := hooks.Begin(retry.Event{Context: t.Context(), Topic: "orders", Metadata: msg.Metadata, MessageUUID: msg.UUID})
			produced := message.NewMessage("2", nil)
			copied := message.NewMessage("3", nil)
			copied.Metadata = msg.Metadata // as handlers do that pass the metadata on
			hooks.Produced(begun, []*message.Message{produced, copied, msg, nil})
			hooks.Event(retry.Event{Context: begun, Outcome: retry.Processed})

			span := r.only("process orders")
			assert.Equal(t, idOf(producer.SpanContext()), idOf(span.Parent))
			p := propagators{configured: test.propagator}
			for _, m := range []*message.Message{produced, copied, msg} {
				got := p.current().Extract(t.Context(), propagation.MapCarrier(m.Metadata))
				assert.Equal(t, idOf(span.SpanContext), idOf(trace.SpanContextFromContext(got)), m.UUID)
				if test.key == "baggage" {
					assert.Equal(t, "tenant=7", baggage.FromContext(got).String())
				}
			}
			assert.NotEqual(t, before, msg.Metadata)
			assert.Equal(t, before, begun.(*attempt).metadata, "the map of the message that arrived is as before: its copy has it")
		})
	}
}

// TestProducedMessagesKeepTheirOwn: a handler that has injected a context, or set its own baggage, keeps it.
func TestProducedMessagesKeepTheirOwn(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	hooks := traceObserver(r, Config{}, backend.Observed{})
	ctx, producer := r.start("checkout")
	producer.End()
	msg := order(baggage.ContextWithBaggage(ctx, member(t, "tenant=7")))
	attempt := hooks.Begin(retry.Event{Context: t.Context(), Topic: "orders", Metadata: msg.Metadata, MessageUUID: msg.UUID})
	inner, inside := r.Tracer("app").Start(attempt, "inside")
	inside.End()

	injected := order(inner)
	bagged := message.NewMessage("2", nil)
	bagged.Metadata["baggage"] = "tenant=8"
	inContext := message.NewMessageWithContext(inner, "3", nil)
	hooks.Produced(attempt, []*message.Message{injected, bagged, inContext})
	hooks.Event(retry.Event{Context: attempt, Outcome: retry.Processed})

	spanOf := func(m *message.Message) string {
		return idOf(trace.SpanContextFromContext(propagation.TraceContext{}.Extract(t.Context(), propagation.MapCarrier(m.Metadata))))
	}
	assert.Equal(t, idOf(inside.SpanContext()), spanOf(injected))
	assert.Equal(t, idOf(inside.SpanContext()), spanOf(inContext))
	assert.Equal(t, idOf(r.only("process orders").SpanContext), spanOf(bagged))
	assert.Equal(t, "tenant=8", bagged.Metadata["baggage"])
}

// TestProducedMessagesHaveOneContext: a message with a context in one of several formats gets none in the others.
func TestProducedMessagesHaveOneContext(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	several := Config{Propagator: propagation.NewCompositeTextMapPropagator(b3{"b3"}, propagation.TraceContext{})}
	hooks := traceObserver(r, several, backend.Observed{})
	attempt := hooks.Begin(retry.Event{Context: t.Context(), Topic: "orders", MessageUUID: "1"})
	ctx, other := r.start("another trace")
	other.End()
	own := order(ctx, Config{Propagator: b3{"b3"}})
	before := maps.Clone(own.Metadata)
	hooks.Produced(attempt, []*message.Message{own})
	hooks.Event(retry.Event{Context: attempt, Outcome: retry.Processed})
	assert.Equal(t, before, own.Metadata)
}

// TestPropagatorOfTheProcess is not parallel, because it sets a variable of the process. OpenTelemetry cannot set its default again, so the
// other tests have the same one of their own.
func TestPropagatorOfTheProcess(t *testing.T) {
	p := &propagators{}
	first := len(otel.GetTextMapPropagator().Fields()) == 0
	assert.ElementsMatch(t, []string{"traceparent", "tracestate", "baggage"}, p.current().Fields(), "until the app has set one")
	t.Cleanup(func() { otel.SetTextMapPropagator(w3c) })
	otel.SetTextMapPropagator(b3{"b3"})
	if !first { // with -count, the app has set one before
		p = &propagators{}
	}
	assert.Equal(t, []string{"b3"}, p.current().Fields(), "read when used")
}

// kept is a publisher that keeps what it gets.
type kept struct {
	messages []*message.Message
	err      error
	closed   bool
}

func (k *kept) Publish(_ string, messages ...*message.Message) error {
	k.messages = append(k.messages, messages...)
	return k.err
}

func (k *kept) Close() error { k.closed = true; return nil }

// TestPublisher: a span for each message, and a copy with its context. The message itself is as before.
func TestPublisher(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	to := &kept{}
	publisher := Publisher(to, r)
	ctx, request := r.start("request")
	first, second := message.NewMessageWithContext(ctx, "1", []byte("a")), message.NewMessage("2", nil)
	second.Metadata["key"] = "value"
	require.NoError(t, publisher.Publish("orders", first, second, nil))
	request.End()

	spans := r.named("send orders")
	require.Len(t, spans, 2)
	require.Len(t, to.messages, 3)
	assert.Nil(t, to.messages[2])
	byID := map[string]int{}
	for i, s := range spans {
		attributes := attributesOf(s.Attributes)
		byID[attributes["messaging.message.id"]] = i
		assert.Equal(t, trace.SpanKindProducer, s.SpanKind)
		delete(attributes, "messaging.message.id")
		assert.Equal(t, map[string]string{
			"messaging.system": "*observe.kept", "messaging.destination.name": "orders", "messaging.operation.name": "send", "messaging.operation.type": "send",
		}, attributes)
	}
	for i, sent := range to.messages[:2] {
		of := spans[byID[sent.UUID]]
		assert.Equal(t, traceparentOf(of.SpanContext), sent.Metadata["traceparent"])
		assert.Equal(t, idOf(of.SpanContext), idOf(trace.SpanContextFromContext(sent.Context())))
		assert.Equal(t, []*message.Message{first, second}[i].Payload, sent.Payload)
	}
	assert.Equal(t, "value", to.messages[1].Metadata["key"])
	assert.Equal(t, request.SpanContext().SpanID(), spans[byID["1"]].Parent.SpanID())
	assert.False(t, spans[byID["2"]].Parent.IsValid())
	assert.Empty(t, first.Metadata)
	assert.Equal(t, message.Metadata{"key": "value"}, second.Metadata)
	assert.Equal(t, ctx, first.Context())

	require.NoError(t, publisher.Close())
	assert.True(t, to.closed)
	assert.Equal(t, message.Publisher(to), Publisher(to, nil))
}

// TestPublisherOfProducedMessages: the span of a message that has no span in its context belongs to the context in its metadata.
func TestPublisherOfProducedMessages(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	config := Config{Propagator: b3{"b3"}}
	to := &kept{err: errors.New("no route")}
	ctx, attempt := r.start("attempt")
	attempt.End()
	require.EqualError(t, Publisher(to, r, config).Publish("orders", order(ctx, config)), "no route")
	s := r.only("send orders")
	assert.Equal(t, attempt.SpanContext().SpanID(), s.Parent.SpanID())
	assert.Equal(t, codes.Error, s.Status.Code)
	assert.Equal(t, "*errors.errorString", attributesOf(s.Attributes)["error.type"])
	require.Len(t, s.Events, 1)
	assert.Equal(t, "no route", attributesOf(s.Events[0].Attributes)["exception.message"])
}

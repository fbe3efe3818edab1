package observe_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/tieredretry/watermill-retry/backoff"

	"github.com/tieredretry/watermill-retry/observe"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// Traces of all handlers of a Connection, and of what the app publishes outside of its handlers.
func ExampleOpenTelemetry_traces() {
	var rabbit retry.Connection // of Connect, on any backend
	router := message.NewDefaultRouter(nil)
	bill := func(msg *message.Message) error {
		_, span := otel.Tracer("app").Start(msg.Context(), "charge") // inside of the span of the attempt
		defer span.End()
		return nil
	}

	rabbit.Observe(observe.OpenTelemetry(otel.GetMeterProvider(), otel.GetTracerProvider()))
	rabbit.AddConsumerHandler(router, "billing", "orders", bill).AddMiddleware(middleware.Timeout(time.Minute))

	publisher := observe.Publisher(rabbit.Publisher(), otel.GetTracerProvider())
	_ = publisher.Publish("orders", message.NewMessage(watermill.NewUUID(), []byte("order 1")))
}

// The spans of an order whose first attempt fails. They are one trace.
func ExamplePublisher() {
	spans := tracetest.NewInMemoryExporter()
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)) // an app exports to a collector: otlptracegrpc.New
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, nil)
	connection, err := relay.Connect(relay.Config{
		Publisher: pubSub, Policy: retry.Policy{Schedule: backoff.Schedule{100 * time.Millisecond}},
		NewSubscriber: func(relay.SubscriberParams) (message.Subscriber, error) { return pubSub, nil },
	}, nil)
	if err != nil {
		panic(err)
	}
	connection.Observe(observe.OpenTelemetry(nil, tracers))
	router := message.NewDefaultRouter(watermill.NopLogger{})
	connection.AddConsumerHandler(router, "billing", "orders", func(msg *message.Message) error {
		if record, _ := retry.ReadRecord(msg.Metadata); record.Failures == 0 {
			return errors.New("the bank is down")
		}
		return nil
	})
	go func() { _ = router.Run(context.Background()) }()
	<-router.Running()

	publisher := observe.Publisher(connection.Publisher(), tracers)
	if err := publisher.Publish("orders", message.NewMessage("order-1", nil)); err != nil {
		panic(err)
	}
	for until := time.Now().Add(time.Minute); len(spans.GetSpans()) < 4 && time.Now().Before(until); {
		time.Sleep(10 * time.Millisecond)
	}
	_ = router.Close()
	_ = connection.Close()

	first := spans.GetSpans()[0].SpanContext.TraceID()
	names := map[string]int{}
	for _, span := range spans.GetSpans() {
		names[span.Name]++
		if span.SpanContext.TraceID() != first {
			fmt.Println("another trace:", span.Name)
		}
	}
	fmt.Println(names)
	// Output: map[process orders:2 send orders:1 wait 100ms:1]
}

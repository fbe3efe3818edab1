//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/observe"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	handler     = "billing"
	localBroker = "amqp://guest:guest@localhost:5672/"
)

// schedule is short: nothing in a demo should wait for minutes.
var schedule = backoff.Schedule{time.Second, 2 * time.Second, 4 * time.Second}

func settings(opts options) config.Config {
	return config.Config{
		AMQP: amqp.NewDurableQueueConfig(opts.uri),
		// A third of the calls fail without an outage, and half of them for a moment after it.
		Policy: retry.Policy{Schedule: schedule, Breaker: &retry.Breaker{
			Ratio: 0.8, Least: 10, Window: 5 * time.Second, Pause: time.Second, MaxPause: 4 * time.Second,
		}},
		Settings: rabbitmq.Settings{Management: opts.management},
	}
}

// app is an ordinary Watermill app, and what makes its retries visible.
type app struct {
	queue    string
	rabbit   retry.Connection
	router   *message.Router
	orders   message.Publisher // the publisher of another service, in a real system
	tracer   trace.Tracer
	provider *provider
}

// newApp connects the app. The observers are attached in one call.
func newApp(opts options, registry prometheus.Registerer, traces trace.TracerProvider, j *journal) (*app, error) {
	rabbit, err := config.Connect(settings(opts), nil)
	if err != nil {
		return nil, err
	}
	// Traces are first: then the metrics find the span of each attempt, for their exemplars.
	rabbit.Observe(
		observe.OpenTelemetry(nil, traces),
		observe.Prometheus(registry, observe.Config{WaitingEvery: time.Second}),
	)
	a := &app{
		queue: opts.queue, rabbit: rabbit, router: message.NewDefaultRouter(nil),
		orders: observe.Publisher(rabbit.Publisher(),
			traces), tracer: traces.Tracer("example/observability"), provider: &provider{},
	}
	rabbit.Observe(j)
	rabbit.AddConsumerHandler(a.router, handler, opts.queue, a.bill, retry.Options{Concurrency: 8})
	return a, nil
}

// bill is the handler. Its span is inside of that of the attempt, because the context of the message has it.
func (a *app) bill(msg *message.Message) error {
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return backoff.Permanent(fmt.Errorf("not an order: %w", err))
	}
	_, span := a.tracer.Start(msg.Context(), "charge the card", trace.WithSpanKind(trace.SpanKindClient))
	defer span.End()
	err := a.provider.charge(o)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	return err
}

// publish publishes an order, as another service would. The trace begins here: observe.Publisher puts its context
// into the metadata.
func (a *app) publish(ctx context.Context, o order) (trace.TraceID, error) {
	payload, err := json.Marshal(o)
	if err != nil {
		return trace.TraceID{}, err
	}
	ctx, span := a.tracer.Start(ctx, o.id())
	defer span.End()
	msg := message.NewMessage(o.id(), payload)
	msg.SetContext(ctx)
	if err := a.orders.Publish(a.queue, msg); err != nil {
		return trace.TraceID{}, fmt.Errorf("%s was not published: %w", o.id(), err)
	}
	return span.SpanContext().TraceID(), nil
}

// paused returns why the handler takes no new messages, or nothing.
func (a *app) paused() []string {
	for _, s := range a.rabbit.Health().Subscriptions {
		if len(s.Paused) > 0 {
			return s.Paused
		}
	}
	return nil
}

// serveMetrics serves the metrics until stop is called. OpenMetrics is the format that has exemplars.
func serveMetrics(address string, registry *prometheus.Registry) (at string, stop func(), err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return "", nil, fmt.Errorf("-metrics %s: %w; name another address, such as 127.0.0.1:0 for any free port",
			address, err)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	return listener.Addr().String(), func() { _ = server.Close() }, nil
}

// removeQueues removes the work queue, its tiers and its dead letters. The exchanges and the queue of the orphans
// stay, because other apps on the broker can have the same ones.
func removeQueues(opts options) (err error) {
	builder, err := config.NewBuilder(settings(opts))
	if err != nil {
		return err
	}
	connection, err := amqp091.Dial(opts.uri)
	if err != nil {
		return fmt.Errorf("cannot connect to RabbitMQ: %w", err)
	}
	defer func() { err = errors.Join(err, connection.Close()) }()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	t := builder.Topology(opts.queue)
	for _, queue := range append(t.Queues, t.WorkQueue) {
		if strings.HasPrefix(queue.Name, opts.queue) {
			_, fault := channel.QueueDelete(queue.Name, false, false, false)
			err = errors.Join(err, fault)
		}
	}
	return err
}

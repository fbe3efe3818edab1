// Package observe makes a Connection of watermill-retry visible: metrics for Prometheus or OpenTelemetry, and traces.
//
//	rabbit.Observe(observe.Prometheus(prometheus.DefaultRegisterer))
//	rabbit.Observe(observe.OpenTelemetry(otel.GetMeterProvider(), otel.GetTracerProvider()))
//
// It is a module of its own, so that apps without it do not get its dependencies. It works with every Connection:
// that of RabbitMQ, of package relay, and of package retrytest.
//
// No label has a message id or the text of an error. What an observer does cannot change the outcome of a message:
// its errors are logged, each once.
package observe

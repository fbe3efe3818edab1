//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDemo is the whole demo on a real RabbitMQ and a real Prometheus. With -once it fails by itself where something
// is missing.
func TestDemo(t *testing.T) {
	t.Parallel()
	args := []string{
		"-once", "-queue", "observe-" + strings.ToLower(rand.Text()[:8]), "-metrics", "127.0.0.1:0", "-outage", "5s",
	}
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(args, &stdout, &stderr), "%s%s", &stdout, &stderr)
	for _, want := range []string{
		"the breaker has paused the handler (failing)", "done=", "outcomes, in Prometheus:", "recovered:", "alerts " +
			"that have fired:",
		"The trace of order-7", "attempt 1: outcome=retried", "attempt 4: " +
			"outcome=dead-lettered",
		"redrive", "attempt 5: outcome=processed",
	} {
		assert.Contains(t, stdout.String(), want)
	}
	assert.Empty(t, stderr.String())
}

// TestAppOnly: the app alone, as in a container, until it is stopped. It removes its queues, and those of a run that
// was killed.
func TestAppOnly(t *testing.T) {
	t.Parallel()
	args := []string{"-app", "-queue", "observe-" + strings.ToLower(rand.Text()[:8]), "-metrics", "127.0.0.1:0"}
	opts, err := parse(args, io.Discard)
	require.NoError(t, err)
	connection, err := amqp091.Dial(opts.uri)
	require.NoError(t, err)
	defer func() { assert.NoError(t, connection.Close()) }()
	channel, err := connection.Channel()
	require.NoError(t, err)
	_, err = channel.QueueDeclare(opts.queue, false, false, false, false, nil) // with other arguments than the app's
	require.NoError(t, err)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	reader, writer := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- demo(ctx, opts, writer)
		_ = writer.Close()
	}()
	var metrics string
	for lines := bufio.NewScanner(reader); lines.Scan(); {
		if _, at, found := strings.Cut(lines.Text(), "http://"); found {
			metrics = "http://" + at
		}
		if strings.Contains(lines.Text(), "has failed, has waited on a tier") {
			break
		}
	}
	answer, err := http.Get(metrics)
	require.NoError(t, err)
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	assert.Contains(t, string(text), `watermill_retry_outcomes_total{`)
	stop()
	_, _ = io.Copy(io.Discard, reader)
	require.ErrorIs(t, <-ended, context.Canceled)
	_, err = channel.QueueDeclarePassive(opts.queue, false, false, false, false, nil)
	require.ErrorContains(t, err, "NOT_FOUND", "the queue is left")
}

// TestCollector: the spans go to the collector that the environment names.
func TestCollector(t *testing.T) {
	paths := make(chan string, 10)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter,
		r *http.Request) {
		paths <- r.URL.Path
	}))
	defer collector.Close()
	t.Setenv(otlpEndpoint, collector.URL)
	traces, err := newTraces(t.Context(), &kept{})
	require.NoError(t, err)
	_, span := traces.Tracer("test").Start(t.Context(), "order-7")
	span.End()
	require.NoError(t, traces.Shutdown(t.Context()))
	assert.Equal(t, "/v1/traces", <-paths)
}

func TestATakenPortIsExplained(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	var stdout, stderr bytes.Buffer
	args := []string{"-once", "-queue", "observe-" + strings.ToLower(rand.Text()[:8]), "-metrics",
		taken.Addr().String()}
	assert.Equal(t, 1, run(args, &stdout, &stderr))
	assert.Contains(t, stderr.String(), "-metrics "+taken.Addr().String())
	assert.Contains(t, stderr.String(), "name another address")
}

func TestParse(t *testing.T) {
	t.Setenv("AMQP_URL", "amqp://a:b@there:1")
	t.Setenv("AMQP_MANAGEMENT_URL", "http://there:2")
	var out bytes.Buffer
	opts, err := parse([]string{"-once"}, &out)
	require.NoError(t, err)
	assert.Equal(t, options{
		uri: "amqp://a:b@there:1", management: "http://there:2",
		queue: "observability-demo", metrics: "127.0.0.1:2112",
		once: true, outage: 15 * time.Second,
	}, opts)
	for _, args := range [][]string{{"orders"}, {"-queue", ""}, {"-outage", "1ms"}, {"-app", "-once"}, {"-nothing"}} {
		var stdout, stderr bytes.Buffer
		assert.Equal(t, 2, run(args, &stdout, &stderr), args)
		assert.Equal(t, 1, strings.Count(stderr.String(), "\n"), args)
	}
	var help, stderr bytes.Buffer
	assert.Zero(t, run([]string{"-h"}, &help, &stderr))
	assert.NotContains(t, help.String()+stderr.String(), "a:b")
}

func TestHurried(t *testing.T) {
	t.Parallel()
	short, err := hurried([]byte("groups: [{name: g, interval: 1m, rules: [" +
		"{alert: A, expr: a, for: 15m, labels: {severity: page}}, {alert: B, expr: b}, {alert: C, expr: c, for: " +
		"1s}, {record: r, expr: r}]}]"))
	require.NoError(t, err)
	assert.YAMLEq(t, "groups: [{name: g, interval: 1m, rules: ["+
		"{alert: A, expr: a, for: 5s, labels: {severity: page}}, {alert: B, expr: b}, {alert: C, expr: c, for: 1s}, "+
		"{record: r, expr: r}]}]", string(short))
	_, err = hurried([]byte("groups: [{rules: [{alert: A, for: soon}]}]"))
	require.ErrorContains(t, err, "alert A")
}

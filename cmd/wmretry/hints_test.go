package main

import (
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCanaryWithoutConsumer: a canary that no app handles proves nothing.
func TestCanaryWithoutConsumer(t *testing.T) {
	t.Parallel()
	q := declare(t)
	q.timeouts(2)
	const warning = "has no consumer: a canary that no app handles cannot die"
	redrive := []string{"dead", "redrive", q.work, "--limit", "1", "--canary", "1", "--canary-wait", "100ms"}
	assert.NotContains(t, run(t, 0, append(redrive, "--dry-run")...).stderr, warning)
	r := run(t, 0, redrive...)
	assert.Contains(t, r.stderr, "warning: the queue "+q.work+" "+warning)
	assert.NotContains(t, r.stdout, warning)
	_, err := channelOf(t).Consume(q.work, "", false, false, false, false, nil)
	require.NoError(t, err)
	assert.NotContains(t, run(t, 0, redrive...).stderr, warning)
}

// TestDrainOfAStranger: a message on a tier that does not name its work queue cannot be sent home.
func TestDrainOfAStranger(t *testing.T) {
	t.Parallel()
	q := declareWith(t, 2*time.Hour, 10*time.Hour)
	send(t, q.channel, "", q.tier("2h"), amqp091.Publishing{Body: []byte("?")})
	run(t, 1, "tiers", "drain", q.work, "2h", "--prefix", q.prefix)
	q.await(q.tier("2h"), 1)
	assert.Contains(t, run(t, 0, "dead", "list", "--as-is", q.tier("2h")).stdout, "(no record)")
	assert.Contains(t, run(t, 1, "tiers", "drain", q.work, "3h", "--prefix", q.prefix).stderr, "`wmretry status --all` lists the tiers")
}

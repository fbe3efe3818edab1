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

// TestEditPrintsItsLetter: filters and --limit, which were not given, are not in the output.
func TestEditPrintsItsLetter(t *testing.T) {
	t.Parallel()
	q := declare(t)
	ids := q.fill(3, func(i int, id string) amqp091.Publishing { return letter(id, timeout(i), []byte(`{"total":"5 EURO"}`)) })
	r := runWith(t, 0, []string{"EDITOR=sed -i s/EURO/EUR/"}, "dead", "edit", q.work, ids[1])
	assert.Equal(t, "The letter "+ids[1]+" was sent back with the new body, confirmed and removed from "+q.dead+".\n", r.stdout)
	assert.Equal(t, 2, q.count(q.dead))
}

// TestNothingThere: silence is no answer.
func TestNothingThere(t *testing.T) {
	t.Parallel()
	q := declareWith(t, time.Hour)
	r := run(t, 0, "dead", "list", q.work)
	assert.Empty(t, r.stdout)
	assert.Equal(t, "no letters in "+q.dead+"\n", r.stderr)
	begin := q.work[:len(q.work)-2]
	require.Eventually(t, func() bool { // the management API follows in a moment
		r = run(t, 0, "status", begin, "--prefix", q.prefix)
		return r.stderr == "wmretry: the queue "+begin+" does not exist; work queues whose name begins like it are "+q.work+"\n"
	}, patience, 100*time.Millisecond, "the hint")
	assert.Contains(t, r.stdout, "does not exist")
}

// TestDrainOfAStranger: a message on a tier that does not name its work queue cannot be sent home.
func TestDrainOfAStranger(t *testing.T) {
	t.Parallel()
	q := declareWith(t, 2*time.Hour, 10*time.Hour)
	channel := channelOf(t)
	require.NoError(t, channel.Confirm(false))
	confirm, err := channel.PublishWithDeferredConfirm("", q.tier("2h"), true, false, amqp091.Publishing{DeliveryMode: amqp091.Persistent, Body: []byte("?")})
	require.NoError(t, err)
	require.True(t, confirm.Wait())
	r := run(t, 1, "tiers", "drain", q.work, "2h", "--prefix", q.prefix, "--force")
	assert.NotContains(t, r.stderr, "Redrive.To")
	assert.Contains(t, r.stderr, "list it with `wmretry dead list --as-is "+q.tier("2h")+"`")
	assert.Contains(t, run(t, 0, "dead", "list", "--as-is", q.tier("2h")).stdout, "(no record)")
	assert.Contains(t, run(t, 1, "tiers", "drain", q.work, "3h", "--prefix", q.prefix).stderr, "has the tiers 2h, 10h")
}

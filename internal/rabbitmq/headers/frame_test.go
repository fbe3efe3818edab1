package headers_test

import (
	"maps"
	"strings"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
)

// The history goes before the record, and the record, whose reason is cut to whole characters, before a header of the
// app.
func TestShrinkCutsTheRecordAndNotTheMessage(t *testing.T) {
	const all, poisoned, raw = 1 << 20, "reason_poisoned", "retry_marshal_error"
	reason := strings.Repeat("r", 1000)
	record := amqp091.Table{
		"app": strings.Repeat("a", 5000), recordkey.Reason: reason + "éé", "retry_error_type": "*errors.errorString",
		"retry_handler": "billing", recordkey.Topic: "orders", recordkey.Failures: "3", "retry_first_failed_at": "x",
		"retry_last_failed_at": "x", "retry_due_at": "x",
	}
	foldedOnly := amqp091.Table{"retry_first_arrived_at": "x", "_watermill_delayed_for": "1s", "_watermill_delayed_until": "x"}
	const details = "retry_reason retry_error_type retry_handler retry_first_failed_at retry_last_failed_at retry_due_at " +
		"retry_first_arrived_at _watermill_delayed_for _watermill_delayed_until "
	const needed = "retry_topic retry_failures retry_dead_reason"
	dead := amqp091.Table{recordkey.DeadReason: "exhausted"}
	for name, row := range map[string]struct {
		also   amqp091.Table // headers beside those of the record
		folded bool
		excess int
		gone   string        // headers
		cut    amqp091.Table // headers with other values
	}{
		"the reason of PoisonQueue": {also: amqp091.Table{poisoned: reason}, excess: 100, gone: poisoned},
		"a part of the reason": {also: amqp091.Table{poisoned: reason}, excess: 1000 + len(poisoned) + 6 + 1, gone: poisoned,
			cut: amqp091.Table{recordkey.Reason: reason + "é"}},
		"all of the record":     {excess: all, gone: details},
		"all, of a dead letter": {also: dead, excess: all, gone: details + needed},
		"nothing":               {also: foldedOnly, folded: true},
		"a part of a folded one": {also: foldedOnly, folded: true, excess: 4 + 5 + 1, gone: "_watermill_delayed_until _watermill_delayed_for",
			cut: amqp091.Table{recordkey.Reason: reason + "é"}},
		"all of a folded one":     {also: foldedOnly, folded: true, excess: all, gone: details},
		"the history":             {also: amqp091.Table{recordkey.Redriven: history}, excess: 1, gone: recordkey.Redriven},
		"the history, folded":     {also: amqp091.Table{recordkey.Redriven: history}, folded: true, excess: 1, gone: recordkey.Redriven},
		"the reason of a raw one": {also: amqp091.Table{raw: strings.Repeat("€", 10)}, excess: 2, cut: amqp091.Table{raw: strings.Repeat("€", 9)}},
		"all, and the mark of raw": {also: amqp091.Table{raw: "€", recordkey.DeadReason: "exhausted"}, excess: all,
			gone: details + needed, cut: amqp091.Table{raw: ""}},
	} {
		want, p := maps.Clone(record), amqp091.Publishing{Headers: maps.Clone(record)}
		maps.Copy(want, row.also)
		maps.Copy(p.Headers, row.also)
		if row.folded {
			p.Headers = headers.Fold(p.Headers)
		}
		headers.Shrink(&p, row.excess)
		for gone := range strings.FieldsSeq(row.gone) {
			delete(want, gone)
		}
		maps.Copy(want, row.cut)
		assert.Equal(t, want, headers.Unfold(p.Headers), name)
	}
	maps.Copy(record, foldedOnly)
	for _, excess := range []int{1, 4, 5, 8, 9, 100, 1000, 1040} {
		p := amqp091.Publishing{Headers: headers.Fold(record)}
		before := len(p.Headers["retry_record"].(string))
		headers.Shrink(&p, excess)
		assert.GreaterOrEqual(t, before-len(p.Headers["retry_record"].(string)), excess)
	}
}

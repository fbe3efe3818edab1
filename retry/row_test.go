package retry

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/recordkey"
)

func TestEachFieldOfTheRecordHasOneRow(t *testing.T) {
	var record Record
	names := map[any]string{}
	for _, row := range record.rows() {
		assert.NotEmpty(t, row.key)
		if !row.repeats {
			assert.Empty(t, names[row.value], "the field of %s has another row", row.key)
			names[row.value] = row.name()
		}
	}
	fields := reflect.ValueOf(&record).Elem()
	for i := range fields.NumField() {
		name, _, _ := strings.Cut(fields.Type().Field(i).Tag.Get("json"), ",")
		assert.Equal(t, name, names[fields.Field(i).Addr().Interface()], "text and JSON have the same name")
	}
	assert.Len(t, names, fields.NumField())
}

// Messages that wait on brokers have these letters, and readers of other versions go by them.
func TestTheLettersOfTheRecordStay(t *testing.T) {
	letters := map[string]string{}
	for _, l := range recordkey.Letters {
		letters[string(l.Letter)] = l.Key
	}
	for _, row := range new(Record).rows() {
		waits := !row.dead && !row.poison && row.key != recordkey.DeadReason
		assert.Equal(t, waits, slices.Contains(slices.Collect(maps.Values(letters)), row.key), row.key)
	}
	assert.Equal(t, map[string]string{
		"n": "retry_failures", "t": "retry_topic", "m": "retry_remaining", "s": "retry_snoozes", "d": "retry_due_at",
		"l": "retry_last_failed_at", "f": "retry_first_failed_at", "a": "retry_first_arrived_at", "h": "retry_handler",
		"e": "retry_error_type", "p": "retry_traceparent", "r": "retry_reason", "u": "_watermill_delayed_until",
		"w": "_watermill_delayed_for", "k": "retry_key",
	}, letters)
}

package retry

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestEachFieldOfTheRecordHasOneRow(t *testing.T) {
	var record Record
	names, letters := map[any]string{}, map[byte]string{}
	for _, row := range record.rows() {
		assert.NotEmpty(t, row.key)
		if row.letter != 0 {
			assert.Empty(t, letters[row.letter], "the letter of %s has another key", row.key)
			letters[row.letter] = row.key
		}
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
	t.Parallel()
	letters := map[string]string{}
	for _, r := range (&Record{}).rows() {
		if r.letter != 0 {
			letters[string(r.letter)] = r.key
		}
	}
	assert.Equal(t, map[string]string{
		"n": "retry_failures", "t": "retry_topic", "m": "retry_remaining", "s": "retry_snoozes", "d": "retry_due_at",
		"l": "retry_last_failed_at", "f": "retry_first_failed_at", "a": "retry_first_arrived_at", "h": "retry_handler",
		"e": "retry_error_type", "p": TraceparentKey, "r": "retry_reason", "u": "_watermill_delayed_until",
		"w": "_watermill_delayed_for",
	}, letters)
}

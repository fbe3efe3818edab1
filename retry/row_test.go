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

package headers

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestEveryFieldIsFolded(t *testing.T) {
	assert.LessOrEqual(t, len(fields), len(record{}))
	letters := ""
	for i, f := range fields {
		letters += string(f.letter)
		assert.Equal(t, i, fieldOf(f.key), f.key)
	}
	assert.Equal(t, "ntmdlfaheruwspk", letters, "messages on brokers have them in this order; a new one is at the end")
	for _, other := range []string{"", "trace", "retry_traceparenT", strings.Repeat("k", 100)} {
		assert.Equal(t, -1, fieldOf(other), other)
	}
}

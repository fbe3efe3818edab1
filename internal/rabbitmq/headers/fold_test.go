package headers

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestEveryFieldIsFolded(t *testing.T) {
	for i, f := range fields {
		assert.Equal(t, i, fieldOf(f.key), f.key)
	}
	assert.Equal(t, -1, fieldOf("trace"))
}

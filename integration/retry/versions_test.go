package retry_test

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestColumnsAreTheTestedVersions: the table of what each version does has a column for each version that CI tests, and no other.
func TestColumnsAreTheTestedVersions(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile("../../tools/rabbitmq-versions")
	require.NoError(t, err)
	assert.ElementsMatch(t, strings.Fields(string(list)), slices.Collect(maps.Keys(columns)))
}

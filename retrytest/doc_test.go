package retrytest_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/retry"
)

func TestPackageDocumentationListsTheOutcomesOfTheMiddleware(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	var got []retry.Outcome
	for _, row := range regexp.MustCompile(`(?m)^//\t([a-z-]+(?: [a-z]+)?)  +(?:the handler|the message)`).FindAllSubmatch(text, -1) {
		got = append(got, retry.Outcome(row[1]))
	}
	assert.Equal(t, retry.Outcomes(), got)
}

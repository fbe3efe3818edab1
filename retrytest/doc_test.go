package retrytest_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/middleware"
)

func TestPackageDocumentationListsTheOutcomesOfTheMiddleware(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	var got []middleware.Outcome
	for _, row := range regexp.MustCompile(`(?m)^//\t([a-z-]+(?: [a-z]+)?)  +(?:the handler|the message)`).FindAllSubmatch(text, -1) {
		got = append(got, middleware.Outcome(row[1]))
	}
	assert.Equal(t, middleware.Outcomes(), got)
}

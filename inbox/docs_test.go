package inbox_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/inbox"
)

// Migrations are copied from the page.
func TestThePageHasTheSchema(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/inbox.md")
	require.NoError(t, err)
	assert.Contains(t, string(page), "```sql\n"+inbox.Schema("")+"```\n")
}

// Package operatetest checks the findings of doctor in the tests of the backends.
package operatetest

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/operate"
)

// Finds checks that a look has one finding, of a rule, with texts in its subject and in what is wrong. Without a rule,
// it has none.
func Finds(t *testing.T, look func(*operate.Checked), rule, subject, what string) {
	t.Helper()
	var checked operate.Checked
	look(&checked)
	if rule == "" {
		assert.Empty(t, checked.Findings)
		return
	}
	if assert.Len(t, checked.Findings, 1) {
		found := checked.Findings[0]
		assert.Equal(t, rule, found.Rule)
		assert.Contains(t, found.Subject, subject)
		assert.Contains(t, found.What, what)
		assert.NotEmpty(t, found.Do)
	}
}

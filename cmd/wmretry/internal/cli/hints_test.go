package cli

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/letters"
)

// TestListCommand: a hint names the queue of the command, and works as it stands.
func TestListCommand(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		asIs                bool
		given, prefix, want string
	}{
		{false, "orders", "", "wmretry dead list orders"},
		{false, "orders.dead", "", "wmretry dead list orders"},
		{false, "orders.dead.dead", "", "wmretry dead list orders.dead.dead"},
		{false, "my orders", "", "wmretry dead list 'my orders'"},
		{false, "orders", "shop", "wmretry dead list orders --prefix shop"},
		{false, "shop.orphans", "shop", "wmretry dead list shop.orphans --prefix shop"},
		{true, "orders.poison", "", "wmretry dead list --as-is orders.poison"},
		{true, "orders.dead", "", "wmretry dead list orders"},
	} {
		l := &letterCommand{env: &env{flags: flags{prefix: row.prefix}}, asIs: row.asIs}
		assert.Equal(t, row.want, l.listCommand(l.queue(row.given)))
	}
	l := &letterCommand{env: &env{}}
	assert.ErrorContains(t, l.noLetter("orders.dead", "a"), "the id a; `wmretry dead list orders` prints the ids")
	err := l.nothing("orders.dead", &filterFlags{reason: "x"})
	assert.ErrorContains(t, err, "`wmretry dead list orders` shows all of them")
}

// TestImportCommand: the report of a discard names the file to import.
func TestImportCommand(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	e := &env{stdout: &out, flags: flags{prefix: "shop"}}
	r := newReport("discard", "orders.dead", false, 0)
	r.Summary, r.Export = letters.Summary{Done: 1, Total: 1}, "old letters.jsonl"
	assert.NoError(t, r.finish(e, nil, &filterFlags{}))
	assert.Contains(t, out.String(), "`wmretry dead import 'old letters.jsonl' --prefix shop` puts them back")
}

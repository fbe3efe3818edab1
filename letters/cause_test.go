package letters

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/retry"
)

func letterOf(id, reason string, at time.Time) *Letter {
	return &Letter{ID: id, Record: retry.Record{
		Reason: reason, ErrorType: "*errors.errorString", DeadReason: retry.DeadReasonExhausted, LastFailedAt: at,
	}}
}

func TestGroups(t *testing.T) {
	t.Parallel()
	var groups Groups
	assert.Empty(t, groups.Sorted())
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	groups.Add(letterOf("a", "order 2 is unknown", noon))
	groups.Add(letterOf("b", "no money", noon.Add(time.Hour)))
	groups.Add(letterOf("c", "order 1 is unknown", time.Time{}))
	groups.Add(letterOf("d", "order 3 is unknown", noon.Add(-time.Minute)))
	other := letterOf("e", "order 4 is unknown", noon)
	other.Record.ErrorType = "*orders.Error"
	groups.Add(other)
	groups.Add(&Letter{ID: "f"})
	cause := func(reason string) Cause {
		return Cause{DeadReason: retry.DeadReasonExhausted, ErrorType: "*errors.errorString", Reason: reason}
	}
	unknown := cause("order <n> is unknown")
	of := unknown
	of.ErrorType = "*orders.Error"
	assert.Equal(t, []Group{
		{Cause: unknown, Count: 3, First: noon.Add(-time.Minute), Last: noon, Example: "a"},
		{Count: 1, Example: "f"},
		{Cause: cause("no money"), Count: 1, First: noon.Add(time.Hour), Last: noon.Add(time.Hour), Example: "b"},
		{Cause: of, Count: 1, First: noon, Last: noon, Example: "e"},
	}, groups.Sorted(), "the largest first")
}

// Reasons of hostile or careless apps that normalise cannot group do not fill the memory.
func TestGroupsAreBounded(t *testing.T) {
	t.Parallel()
	var groups Groups
	at := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	name := func(i int) string {
		return strings.Map(func(digit rune) rune { return digit - '0' + 'a' }, strconv.Itoa(i))
	}
	for i := range 3000 {
		groups.Add(letterOf(fmt.Sprint(i), name(i), at.Add(time.Duration(i)*time.Second)))
	}
	groups.Add(letterOf("again", name(0), at))
	sorted := groups.Sorted()
	require.Len(t, sorted, 1001)
	assert.Equal(t, 2, sorted[0].Count, "a known cause is still counted")
	assert.Equal(t, Group{Count: 2000, First: at.Add(1000 * time.Second), Last: at.Add(2999 * time.Second), Example: "1000", Other: true}, sorted[1000])
	total := 0
	for i, group := range sorted {
		total += group.Count
		assert.Equal(t, i == 1000, group.Other)
	}
	assert.Equal(t, 3001, total)
}

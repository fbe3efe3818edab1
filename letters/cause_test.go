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

func keyed(key string) *Letter {
	l := letterOf("a", "the endpoint is down", time.Time{})
	l.Record.Key = key
	return l
}

func TestGroupsCountKeys(t *testing.T) {
	t.Parallel()
	var groups Groups
	for i := range 30 {
		for range i + 1 {
			groups.Add(keyed(fmt.Sprintf("tenant %02d", i)))
		}
	}
	groups.Add(keyed("tenant 28"))
	groups.Add(keyed(""))
	other := letterOf("b", "no money", time.Time{})
	other.Record.Key = "tenant 29"
	groups.Add(other)
	sorted := groups.Sorted()
	require.Len(t, sorted, 2)
	assert.Equal(t, 30*31/2+2, sorted[0].Count)
	largest := map[string]int{"tenant 28": 30, "tenant 29": 30, "": 10 * 11 / 2}
	for i := 10; i < 28; i++ {
		largest[fmt.Sprintf("tenant %02d", i)] = i + 1
	}
	assert.Equal(t, largest, sorted[0].Keys)
	assert.Equal(t, map[string]int{"tenant 29": 1}, sorted[1].Keys)
}

// Forged keys, in any order, hide no tenant with many letters.
func TestForgedKeysHideNoTenant(t *testing.T) {
	t.Parallel()
	const forged, sick = 10_000, 300
	for name, isSick := range map[string]func(i int) bool{
		"first": func(i int) bool { return i < sick },
		"last":  func(i int) bool { return i >= forged },
		"mixed": func(i int) bool { return i%(forged/sick) == 0 && i/(forged/sick) < sick },
	} {
		var groups Groups
		had := 0
		for i := range forged + sick {
			key := fmt.Sprint("forged ", i)
			if isSick(i) {
				key = "7"
				had++
			}
			groups.Add(keyed(key))
		}
		groups.Add(keyed(strings.Repeat("x", 256)))
		require.Equal(t, sick, had, name)
		group := groups.groups[keyed("").Cause()]
		assert.LessOrEqual(t, len(group.keys), 100, name)
		assert.NotContains(t, group.keys, strings.Repeat("x", 256), "%s: its memory has no bound", name)
		sorted := groups.Sorted()[0]
		require.NotEmpty(t, sorted.Keys, name)
		assert.LessOrEqual(t, sorted.Keys["7"], sick, name)
		assert.GreaterOrEqual(t, sorted.Keys["7"], sick-sorted.Count/100, name)
		total := 0
		for key, count := range sorted.Keys {
			if total += count; key != "7" && key != "" {
				assert.Equal(t, 1, count, name)
			}
		}
		assert.LessOrEqual(t, len(sorted.Keys), 20+1, name)
		assert.Equal(t, sorted.Count, total, name)
	}
}

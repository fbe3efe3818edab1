package claims

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReportHasAColumnForEachSeries(t *testing.T) {
	page := []byte("# Benchmarks\n\n| `make bench` | not a claim |\n\n## Claims\n\n" +
		"| `late` | how late | at most 50 ms | 4 ms |\n| `rate` | how many | at least 20 | |\n| `lost` | none | 0 | |\n" +
		"\n## Others\n\n| `early` | none | 0 | |\n")
	require.Len(t, Of(page, "Others"), 1)
	r := &Report{Claims: Of(page, "Claims")}
	for _, series := range []string{"4.0", "4.3"} {
		r.Add("late", series, 1234.5)
		r.Add("rate", series, 47.25)
	}
	require.Equal(t, "claim late@4.0 measured=1234ms target=50ms missed", r.Figures[0].String())
	require.Equal(t, "claim rate@4.3 measured=47.2 target=20 ok", r.Figures[3].String())
	assert.Contains(t, r.String(), "\n| claim | what it is | target | 4.0 | 4.3 |\n|---|---|---|---|---|\n"+
		"| `late` | how late | at most 50 ms | 1234 ms: missed | 1234 ms: missed |\n"+
		"| `rate` | how many | at least 20 | 47.2 | 47.2 |\n\nnot measured: lost\n")
	assert.Panics(t, func() { r.Add("early", "4.0", 0) }, "of another program")
}

// TestClaimsOfThePage: each claim of docs/benchmarks.md is in the list, with the same text and target.
func TestClaimsOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/benchmarks.md")
	require.NoError(t, err)
	for _, heading := range []string{"Claims", "Other Pub/Subs"} {
		shown := Of(page, heading)
		assert.NotEmpty(t, shown, heading)
		assert.Len(t, shown, strings.Count(Section(page, heading), "\n| `"))
		assert.Subset(t, Of(List, heading), shown)
	}
}

func TestOneOfTwoProgramsIsChosen(t *testing.T) {
	rabbit, others := []string{"storm", "worker"}, []string{"backend-redis-rate", "backend-nats-rate"}
	for only, want := range map[string][2]int{
		"": {2, 2}, "storm": {1, 0}, "backend-redis": {0, 1}, "storm|backend-": {1, 2},
	} {
		for i, questions := range [][]string{rabbit, others} {
			chosen, err := Chosen(only, questions)
			require.NoError(t, err, only)
			assert.Len(t, chosen, want[i], only)
		}
	}
	_, err := Chosen("strom", rabbit)
	require.ErrorContains(t, err, `"strom": the questions are storm, worker`)
	_, err = Chosen("backend-rdeis", others)
	require.ErrorContains(t, err, "backend-redis-rate")
	_, err = Chosen("(", rabbit)
	require.Error(t, err)
}

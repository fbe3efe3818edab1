package adopt

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// testOf is the test of each section with steps. It is here, or in package retry where a version decides.
var testOf = map[string]string{
	"Adopting in a rolling deployment":       "TestRolloutInTwoSteps",
	"From Watermill's Retry and PoisonQueue": "TestFromRetryAndPoisonQueue",
	"From queues with a TTL":                 "TestFromQueuesWithATTL",
	"From the delayed-message exchange":      "TestFromTheDelayedExchange",
	"Adopting a queue that exists":           "TestExistingQuorumQueueIsProtectedByAPolicy",
	"From the builder to Connect":            "TestFromThePartsToConnect",
	"Changing the schedule":                  "TestMoveToAnotherLayout",
	"Move to another layout":                 "TestMoveToAnotherLayout",
	"From a queue of the app's own":          "TestRemovalFromAQueueOfTheApp",
	"With a new queue":                       "TestRemovalWithANewQueue",
}

// TestPageAndTestsHaveTheSameSteps: the test of a section has its steps.
func TestPageAndTestsHaveTheSameSteps(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/adopting.md")
	require.NoError(t, err)
	scale, err := os.ReadFile("../../docs/scale.md")
	require.NoError(t, err)
	_, move, _ := strings.Cut(string(scale), "\n## Move to another layout\n")
	move, _, _ = strings.Cut(move, "\n## ")
	page = append(page, "\n## Move to another layout\n"+move...)
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	bodies := map[string]string{}
	for _, file := range append(files, "../retry/workqueue_test.go") {
		code, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, f := range regexp.MustCompile(`(?ms)^func (\w+)\(.*?^}`).FindAllStringSubmatch(string(code), -1) {
			bodies[f[1]] = f[0]
		}
	}
	numbers := func(pattern, text string) (all []string) {
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			all = append(all, match[1])
		}
		return all
	}
	sections := 0
	for _, section := range strings.Split(string(page), "\n#") {
		steps := numbers(`(?m)^(\d+)\. `, section)
		if len(steps) == 0 {
			continue
		}
		sections++
		title, _, _ := strings.Cut(strings.TrimLeft(section, "# "), "\n")
		code := bodies[testOf[title]]
		if assert.NotEmpty(t, code, "the section %q has no test", title) {
			for _, called := range numbers(`(?m)^\t+(\w+)\(t, `, code) {
				code += bodies[called]
			}
			assert.Equal(t, steps, numbers(`(?m)^\t+// Step (\d+):`, code), title)
		}
	}
	assert.Len(t, testOf, sections)
}

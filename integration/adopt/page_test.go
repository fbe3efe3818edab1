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

// TestPageAndTestsHaveTheSameSteps: every test that the pages name is here, or in package retry where a version decides, and
// has the steps of its section.
func TestPageAndTestsHaveTheSameSteps(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/adopting.md")
	require.NoError(t, err)
	scale, err := os.ReadFile("../../docs/scale.md")
	require.NoError(t, err)
	_, move, _ := strings.Cut(string(scale), "\n## Move to another layout\n")
	move, _, _ = strings.Cut(move, "\n## ")
	page = append(page, "\n## "+move...)
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
	for _, name := range numbers("`(Test\\w+)`", string(page)) {
		assert.Contains(t, bodies, name)
	}
	sections := 0
	for _, section := range strings.Split(string(page), "\n#") {
		steps := numbers(`(?m)^(\d+)\. `, section)
		if len(steps) == 0 {
			continue
		}
		sections++
		tested := numbers("Tested by\\s+`(Test\\w+)`", section)
		if assert.Len(t, tested, 1, "%s", section) {
			code := bodies[tested[0]]
			for _, called := range numbers(`(?m)^\t+(\w+)\(t, `, code) {
				code += bodies[called]
			}
			assert.Equal(t, steps, numbers(`(?m)^\t+// Step (\d+):`, code), tested[0])
		}
	}
	assert.Equal(t, 10, sections)
}

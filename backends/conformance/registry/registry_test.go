package registry_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
)

// TestMakefileHasTheDemos: the Makefile reads the demos from the source of this package.
func TestMakefileHasTheDemos(t *testing.T) {
	t.Parallel()
	help, all := makes(t, "help"), makes(t, "-n", "demo-all")
	require.NotEmpty(t, registry.Demos())
	for _, e := range registry.Demos() {
		assert.NotNil(t, e.Start, e.Name)
		assert.Regexp(t, `(?m)^  make demo-`+e.Demo.Name+` .*`+e.Demo.Title, help)
		command := strings.TrimSpace(makes(t, "-n", "demo-"+e.Demo.Name))
		assert.Contains(t, command, "./example -backend "+e.Demo.Name)
		assert.Contains(t, all, command)
	}
	assert.Error(t, exec.Command("make", "-C", "../../..", "-n", "demo-carrier-pigeon").Run())
}

func makes(t *testing.T, args ...string) string {
	t.Helper()
	output, err := exec.Command("make", append([]string{"--no-print-directory", "-C", "../../.."},
		args...)...).CombinedOutput()
	require.NoError(t, err, "%s", output)
	return string(output)
}

// TestDocsListTheLettersOfEachBackend compares the table in docs/other-pubsubs.md with what the conformance suite
// expects.
func TestDocsListTheLettersOfEachBackend(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/other-pubsubs.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "\n## Dead letters\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	answers := map[string][2]string{} // whether it can browse, and whether it can redrive
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		var row [2]string
		for i := range row {
			row[i], _, _ = strings.Cut(strings.Trim(cells[i+2], " "), " ")
			row[i] = strings.Trim(row[i], ":,")
		}
		for _, name := range regexp.MustCompile("`([a-z0-9-]+)`").FindAllStringSubmatch(cells[1], -1) {
			answers[name[1]] = row
		}
	}
	expected := map[string][2]string{"gochannel": {"no", "no"}}
	for _, e := range registry.All() {
		expected[e.Name] = map[registry.LetterAbility][2]string{
			registry.BrowseLetters: {"yes", "no"}, registry.AllLetters: {"yes", "yes"},
		}[e.Expect.Letters]
	}
	assert.Equal(t, expected, answers)
}

// TestDocsListTheVersionsOfClients compares the table in docs/other-pubsubs.md with the go.mod of each module.
func TestDocsListTheVersionsOfClients(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/other-pubsubs.md")
	require.NoError(t, err)
	rows := regexp.MustCompile("(?m)^\\| `([a-z]+retry)` \\|.* \\| ([^|]+) \\|$").FindAllStringSubmatch(string(page), -1)
	modules, err := filepath.Glob("../../*retry/go.mod")
	require.NoError(t, err)
	require.Len(t, rows, len(modules))
	for _, row := range rows {
		file, err := os.ReadFile("../../" + row[1] + "/go.mod")
		require.NoError(t, err)
		clients := regexp.MustCompile(`([a-z][a-z.-]+) (\d+\.\d+)`).FindAllStringSubmatch(row[2], -1)
		require.NotEmpty(t, clients, row[0])
		for _, client := range clients {
			name, version := regexp.QuoteMeta(client[1]), regexp.QuoteMeta(client[2])
			assert.Regexp(t, "/"+name+`(/v\d+)? v`+version+`\.`, string(file), "%s: %s", row[1], client[0])
		}
	}
}

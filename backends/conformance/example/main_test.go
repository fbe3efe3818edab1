package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
)

// TestEveryBackend runs the same app on each backend, and expects the same last line.
func TestEveryBackend(t *testing.T) {
	for _, e := range registry.Demos() {
		t.Run(e.Name, func(t *testing.T) {
			t.Parallel()
			var out, problems strings.Builder
			status := run([]string{"-backend", e.Name, "-schedule", "200ms 400ms"}, &out,
				&problems)
			require.Zero(t, status, problems.String())
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			assert.Regexp(t, `^published=40 processed=38 dead=2 lost=0 duplicates=0 max_lateness=\d+ms$`,
				lines[len(lines)-1])
		})
	}
}

func TestMistakesAreOneLine(t *testing.T) {
	for _, args := range [][]string{{"-backend", "pigeon"}, {"-schedule", "1us"}, {"-nonsense"}} {
		var out, problems strings.Builder
		assert.Equal(t, 2, run(args, &out, &problems))
		assert.Equal(t, 1, strings.Count(problems.String(), "\n"), "%s", problems.String())
	}
}

// TestTheBackendIsOneLine: the code of a backend is the one line of its case.
func TestTheBackendIsOneLine(t *testing.T) {
	t.Parallel()
	sources, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var cases []string
	for _, source := range sources {
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, source, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(node ast.Node) bool {
			if node, is := node.(*ast.CaseClause); is {
				name, err := strconv.Unquote(node.List[0].(*ast.BasicLit).Value)
				require.NoError(t, err)
				require.Len(t, node.Body, 1, name)
				assert.Equal(t, files.Position(node.Body[0].Pos()).Line, files.Position(node.Body[0].End()).Line, name)
				cases = append(cases, name)
			}
			return true
		})
	}
	var names []string
	for _, e := range registry.Demos() {
		names = append(names, e.Name)
	}
	assert.ElementsMatch(t, names, cases)
}

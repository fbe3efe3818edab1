package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
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

// TestTheBackendIsOneLine makes the program of an app that has one backend, for each of them: the sources without the
// cases of the other backends. Any two of these programs differ in one line, and in their imports.
func TestTheBackendIsOneLine(t *testing.T) {
	t.Parallel()
	nats := programOf(t, "nats")
	for _, e := range registry.Demos() {
		if e.Name == "nats" {
			continue
		}
		own, other := differing(programOf(t, e.Name), nats)
		assert.Len(t, own, 1, "lines of %s that nats does not have", e.Name)
		assert.Len(t, other, 1, "lines of nats that %s does not have", e.Name)
	}
}

// differing returns the lines from the first to the last one that differs, of both programs.
func differing(a, b []string) ([]string, []string) {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return a, b
}

// programOf returns the lines of the sources, without imports, the tests, and the cases of other backends.
func programOf(t *testing.T, backend string) (lines []string) {
	t.Helper()
	sources, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, source := range sources {
		if strings.HasSuffix(source, "_test.go") {
			continue
		}
		text, err := os.ReadFile(source)
		require.NoError(t, err)
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, source, text, 0)
		require.NoError(t, err)
		left := map[int]bool{} // the lines that are left out
		leave := func(node ast.Node) {
			for line := files.Position(node.Pos()).Line; line <= files.Position(node.End()).Line; line++ {
				left[line] = true
			}
		}
		ast.Inspect(file, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.ImportSpec:
				leave(node)
			case *ast.CaseClause:
				name, err := strconv.Unquote(node.List[0].(*ast.BasicLit).Value)
				require.NoError(t, err)
				if name != backend {
					leave(node)
				} else {
					left[files.Position(node.Pos()).Line] = true // case "NAME":
				}
			}
			return true
		})
		for i, line := range strings.Split(string(text), "\n") {
			if !left[i+1] {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

package layout

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// duplicateLines is the number of equal lines in a row that counts as duplicated code.
const duplicateLines = 8

// TestEdgesHaveNoDuplicatedCode: code that both edges need belongs in package rabbitmq, its examples or internal/configtest.
func TestEdgesHaveNoDuplicatedCode(t *testing.T) {
	t.Parallel()
	first, second := goFiles(t, edges[0].folder), goFiles(t, edges[1].folder)
	for name, lines := range first {
		for other, otherLines := range second {
			if duplicate := firstDuplicate(lines, otherLines); duplicate != nil {
				t.Errorf("%d lines of %s are also in %s:\n%s", duplicateLines, name, other, strings.Join(duplicate, "\n"))
			}
		}
	}
}

// TestDuplicatedCodeIsFound makes sure that the rule can fail.
func TestDuplicatedCodeIsFound(t *testing.T) {
	t.Parallel()
	var lines []string
	for i := range duplicateLines {
		lines = append(lines, fmt.Sprint("line ", i))
	}
	before, after := append([]string{"a"}, lines...), append(slices.Clone(lines), "b")
	if firstDuplicate(before, after) == nil {
		t.Error("equal lines are not found")
	}
	if duplicate := firstDuplicate(before, after[:duplicateLines-1]); duplicate != nil {
		t.Errorf("%d lines are too few: %q", duplicateLines-1, duplicate)
	}
	interrupted := slices.Insert(slices.Clone(lines), duplicateLines/2, "other")
	if duplicate := firstDuplicate(lines, interrupted); duplicate != nil {
		t.Errorf("these lines are not in a row: %q", duplicate)
	}
}

// goFiles returns the lines of all Go files of a folder, without blank lines and indentation.
func goFiles(t *testing.T, folder string) map[string][]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("../..", folder, "*.go"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no Go files in %s: %v", folder, err)
	}
	files := map[string][]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" {
				files[path] = append(files[path], line)
			}
		}
	}
	return files
}

// firstDuplicate returns the first duplicateLines lines in a row that are in both, or nil.
func firstDuplicate(a, b []string) []string {
	for i := 0; i+duplicateLines <= len(a); i++ {
		for j := 0; j+duplicateLines <= len(b); j++ {
			if slices.Equal(a[i:i+duplicateLines], b[j:j+duplicateLines]) {
				return a[i : i+duplicateLines]
			}
		}
	}
	return nil
}

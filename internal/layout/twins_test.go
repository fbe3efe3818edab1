package layout

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// twinLines is how many equal lines in a row are a copy.
const twinLines = 8

// TestEdgesAreNoTwins: what the edges have in common belongs in package rabbitmq, its examples or internal/configtest.
func TestEdgesAreNoTwins(t *testing.T) {
	t.Parallel()
	first, second := goFiles(t, edges[0].folder), goFiles(t, edges[1].folder)
	for name, lines := range first {
		for other, otherLines := range second {
			if twin := firstTwin(lines, otherLines); twin != nil {
				t.Errorf("%d lines of %s also stand in %s:\n%s", twinLines, name, other, strings.Join(twin, "\n"))
			}
		}
	}
}

// TestTwinsAreFound makes sure that the rule can fail.
func TestTwinsAreFound(t *testing.T) {
	t.Parallel()
	var lines []string
	for i := range twinLines {
		lines = append(lines, fmt.Sprint("line ", i))
	}
	before, after := append([]string{"a"}, lines...), append(slices.Clone(lines), "b")
	if firstTwin(before, after) == nil {
		t.Error("equal lines are not found")
	}
	if twin := firstTwin(before, after[:twinLines-1]); twin != nil {
		t.Errorf("%d lines are too few: %q", twinLines-1, twin)
	}
	interrupted := slices.Insert(slices.Clone(lines), twinLines/2, "other")
	if twin := firstTwin(lines, interrupted); twin != nil {
		t.Errorf("these lines are not in a row: %q", twin)
	}
}

// goFiles returns the lines of all Go files of a folder that are not blank, trimmed.
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

// firstTwin returns the first twinLines lines in a row that stand in both, or nil.
func firstTwin(a, b []string) []string {
	for i := 0; i+twinLines <= len(a); i++ {
		for j := 0; j+twinLines <= len(b); j++ {
			if slices.Equal(a[i:i+twinLines], b[j:j+twinLines]) {
				return a[i : i+twinLines]
			}
		}
	}
	return nil
}

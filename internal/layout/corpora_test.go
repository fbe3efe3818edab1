package layout

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var fuzzTarget = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)

// TestCorporaAreKept: a fuzz target begins with what it has found before, and its test runs these inputs.
func TestCorporaAreKept(t *testing.T) {
	t.Parallel()
	targets := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, target := range fuzzTarget.FindAllStringSubmatch(string(text), -1) {
			targets++
			corpus := filepath.Join(filepath.Dir(path), "testdata/fuzz", target[1])
			if files, _ := os.ReadDir(corpus); len(files) == 0 {
				t.Errorf("%s has no inputs: copy some of `go env GOCACHE`/fuzz, after make fuzz", corpus)
			}
		}
		return err
	})
	if err != nil || targets == 0 {
		t.Fatalf("%d fuzz targets: %v", targets, err)
	}
}

package layout

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	configuration = regexp.MustCompile(`(?m)^(\S+): type (\w*(?:Config|Settings|Options|Policy)) struct$`)
	printedOne    = regexp.MustCompile(`(?m)^\t"([\w/]+\.\w+)": +\w+\.\w+\{\},$`)
)

// TestAllConfigurationsArePrinted: a test of backends/conformance/secrets prints every exported configuration of all
// modules, and finds no password.
func TestAllConfigurationsArePrinted(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../api/*.txt")
	if err != nil || len(files) < 5 {
		t.Fatalf("the folder api has %q, %v", files, err)
	}
	var exported, printed []string
	for _, file := range files {
		for _, found := range configuration.FindAllStringSubmatch(read(t, "api/"+filepath.Base(file)).text, -1) {
			exported = append(exported, found[1]+"."+found[2])
		}
	}
	for _, found := range printedOne.FindAllStringSubmatch(read(t, "backends/conformance/secrets/secrets_test.go").text, -1) {
		printed = append(printed, found[1])
	}
	slices.Sort(exported)
	slices.Sort(printed)
	if len(exported) < 20 || !slices.Equal(exported, printed) {
		t.Errorf("the list configs of backends/conformance/secrets must have the exported configurations\n%s\nbut has\n%s",
			lines(exported), lines(printed))
	}
}

func lines(names []string) string { return fmt.Sprint("\t", strings.Join(names, "\n\t")) }

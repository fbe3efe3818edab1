package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMutationsApply keeps the list alive: a mutation is written again with the code that it breaks.
func TestMutationsApply(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	all, err := promises()
	require.NoError(t, err)
	names := map[string]bool{}
	for _, p := range all {
		if p.text == "" || len(p.mutations) == 0 {
			t.Errorf("promise %q has no text or no mutation", p.text)
		}
		for _, m := range p.mutations {
			if names[m.name] || m.breaks == "" || m.old == m.new {
				t.Errorf("%q: its name must be unique, breaks must say what goes wrong, and new must differ from "+
					"old", m.name)
			}
			names[m.name] = true
			if _, err := m.apply(); err != nil {
				t.Errorf("%q: %v", m.name, err)
			}
			if missing := testsWithout(t, m); len(missing) > 0 {
				t.Errorf("%q: %s has no test %v", m.name, m.in, missing)
			}
		}
	}
}

func TestSimulatedMutationsAreListed(t *testing.T) {
	all, err := all()
	if err != nil {
		t.Fatal(err)
	}
	found, reasons, err := simulated(all)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range found {
		reasons[m.name] = "it is found"
	}
	for _, m := range all {
		if m.isSimulated() && reasons[m.name] == "" {
			t.Errorf("simulation.txt must have %q, with those that the simulation finds (make mutate MUTATE_ARGS='-sim') or "+
				"below a reason", m.name)
		}
	}
}

var testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Example|Fuzz)\w*)\(`)

// testsWithout returns the alternatives of a mutation's regexp that match no test of its folder.
func testsWithout(t *testing.T, m mutation) (missing []string) {
	files, _ := filepath.Glob(filepath.Join(m.in, "*_test.go"))
	var names []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, found := range testFunction.FindAllStringSubmatch(string(text), -1) {
			names = append(names, found[1])
		}
	}
	all := strings.Join(names, "\n")
	for _, name := range strings.Split(m.tests, "|") {
		name, _, _ = strings.Cut(name, "/") // a subtest
		if !regexp.MustCompile(`(?m)^` + name).MatchString(all) {
			missing = append(missing, name)
		}
	}
	return missing
}

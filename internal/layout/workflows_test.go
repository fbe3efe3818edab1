package layout

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	anyAction    = regexp.MustCompile(`(?m)^\s*(?:- )?uses: *(.+?) *$`)
	pinnedAction = regexp.MustCompile(`^[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*$`)
)

// TestActionsArePinned: a tag of an action can be moved to other code, which would run in the workflows. A workflow that needs only to
// read cannot write.
func TestActionsArePinned(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, ".github/workflows/*.y*ml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no workflows: %v", err)
	}
	for _, file := range files {
		name := ".github/workflows/" + filepath.Base(file)
		for _, fault := range workflowFaults(read(t, name).text) {
			t.Errorf("%s: %s", name, fault)
		}
	}
}

// workflowFaults returns the faults of a workflow.
func workflowFaults(text string) (faults []string) {
	for _, action := range anyAction.FindAllStringSubmatch(text, -1) {
		if !pinnedAction.MatchString(action[1]) && !strings.HasPrefix(action[1], "./") {
			faults = append(faults, action[1]+" must be pinned: NAME@DIGEST # VERSION")
		}
	}
	if !strings.Contains(text, "\npermissions:\n  contents: read\n\n") {
		faults = append(faults, "it must begin with the permission contents: read, and a job gets the others that it needs")
	}
	if strings.Contains(text, "pull_request_target") {
		faults = append(faults, "pull_request_target gives the code of strangers the token of this repository")
	}
	return faults
}

// TestDependenciesAreWatched: Dependabot looks at every Go module.
func TestDependenciesAreWatched(t *testing.T) {
	t.Parallel()
	config := read(t, ".github/dependabot.yml").text
	modules := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && entry.Name() == ".broker" {
			return filepath.SkipDir
		}
		if err != nil || entry.Name() != "go.mod" {
			return err
		}
		modules++
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if folder = "/" + strings.TrimPrefix(filepath.ToSlash(folder), "."); !strings.Contains(config, "      - "+folder+"\n") {
			t.Errorf(".github/dependabot.yml does not have the module in %s", folder)
		}
		return err
	})
	if err != nil || modules == 0 {
		t.Fatalf("%d modules: %v", modules, err)
	}
}

// TestLockHasNoRegistry: the website's packages come from the registry that npm is configured with.
func TestLockHasNoRegistry(t *testing.T) {
	t.Parallel()
	if strings.Contains(read(t, "site/package-lock.json").text, `"resolved"`) {
		t.Error("site/package-lock.json has addresses of a registry: run npm in site, where .npmrc leaves them out")
	}
}

// TestWorkflowRulesFindFaults makes sure that the rules can fail.
func TestWorkflowRulesFindFaults(t *testing.T) {
	t.Parallel()
	digest := strings.Repeat("0a", 20)
	for text, want := range map[string]int{
		"on: push\n\npermissions:\n  contents: read\n\njobs:\n  - uses: a/b@" + digest + " # v1.2.3\n  - uses: ./.github/c\n": 0,
		"\npermissions:\n  contents: read\n\n  - uses: a/b@v1\n    uses: a/b/c@" + digest + "\n  uses: a/b@main # v1\n":       3,
		"on: pull_request_target\n\npermissions:\n  contents: write\n\n":                                                      2,
	} {
		if got := workflowFaults(text); len(got) != want {
			t.Errorf("%q: got %q, want %d", text, got, want)
		}
	}
}

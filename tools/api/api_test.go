package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/tools/modules"
)

const root = "../.."

// TestAPI: the folder api has the exported API of each released module.
func TestAPI(t *testing.T) {
	t.Parallel()
	released, err := modules.Released(root)
	require.NoError(t, err)
	var known []string
	for _, m := range released {
		want, err := describe(root, m)
		require.NoError(t, err)
		if want == "" {
			continue
		}
		known = append(known, filepath.Base(file(root, m)))
		got, err := os.ReadFile(file(root, m))
		if err != nil {
			t.Error(err)
			continue
		}
		if changed := changes(string(got), want); len(changed) > 0 {
			t.Errorf("the API of module %s is not that of %s. If the change is wanted, run `make api`, and write a line "+
				"in CHANGELOG.md:\n%s", m.Path(), file("", m), strings.Join(changed, "\n"))
		}
	}
	entries, err := os.ReadDir(filepath.Join(root, "api"))
	require.NoError(t, err)
	for _, entry := range entries {
		if !slices.Contains(known, entry.Name()) {
			t.Errorf("api/%s belongs to no released module", entry.Name())
		}
	}
}

// changes returns the lines that only one of two texts has: those of the first with -, those of the second with +.
func changes(before, after string) (all []string) {
	only := func(mark, these, others string) {
		lines := strings.Split(others, "\n")
		for line := range strings.SplitSeq(these, "\n") {
			if !slices.Contains(lines, line) {
				all = append(all, mark+" "+line)
			}
		}
	}
	only("-", before, after)
	only("+", after, before)
	return all
}

// TestChangelog: since the last release, or since the branch left main, the API has changed only together with CHANGELOG.md.
func TestChangelog(t *testing.T) {
	t.Parallel()
	fault, err := unlisted(root)
	require.NoError(t, err)
	if fault != "" {
		t.Error(fault)
	}
}

// unlisted returns a fault where the API differs from that of the last release, and CHANGELOG.md has no new line.
func unlisted(root string) (string, error) {
	base, err := git(root, "describe", "--tags", "--abbrev=0", "--match=v[0-9]*")
	if err != nil {
		if base, err = git(root, "merge-base", "HEAD", "origin/main"); err != nil {
			return "", nil // no release, and no main to compare with
		}
	}
	api, err := git(root, "diff", "--unified=0", base, "--", "api")
	if err != nil || api == "" {
		return "", err
	}
	log, err := git(root, "diff", "--unified=0", base, "--", "CHANGELOG.md")
	if err != nil || strings.Contains(log, "\n+") && strings.Contains(strings.ReplaceAll(log, "\n+++", ""), "\n+") {
		return "", err
	}
	return "the API has changed since " + base + ", and CHANGELOG.md has no new line:\n" + api, nil
}

func git(dir string, args ...string) (string, error) {
	output, err := exec.Command("git", append([]string{"-C", dir}, args...)...).Output()
	return strings.TrimSpace(string(output)), err
}

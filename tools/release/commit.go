package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/tieredretry/watermill-retry/tools/modules"
)

// commit makes the commits and tags. The first commit is that of the root module, which main gets, too. The go.mod of a
// nested module requires the root by its version, so its commit comes later, and stays beside main.
func (r *release) commit() error {
	if err := r.writeDocuments(); err != nil {
		return err
	}
	r.ownGo()
	pending := r.modules[:1]
	for _, m := range r.modules[1:] {
		if slices.ContainsFunc(pending, func(p modules.Module) bool { return slices.Contains(m.Requires, p.Path) }) {
			if err := r.tag(pending); err != nil {
				return err
			}
			pending = nil
		}
		if err := r.requireVersions(m); err != nil {
			return err
		}
		pending = append(pending, m)
	}
	return r.tag(pending)
}

func (r *release) tag(released []modules.Module) error {
	what := "the nested modules, "
	if released[0].Dir == "." {
		what = ""
	}
	subject := "release: " + what + r.version
	if _, err := git(r.clone, "commit", "--quiet", "--all", "--allow-empty", "-m", subject); err != nil {
		return err
	}
	for _, m := range released {
		if _, err := git(r.clone, "tag", "--annotate", m.Tag(r.version), "-m", m.Path+" "+r.version); err != nil {
			return err
		}
	}
	return nil
}

// requireVersions replaces the replace lines of a module by versions.
func (r *release) requireVersions(m modules.Module) error {
	edit := []string{"mod", "edit"}
	for _, path := range m.Requires {
		edit = append(edit, "-dropreplace="+path, "-require="+path+"@"+r.version)
	}
	dir := filepath.Join(r.clone, filepath.FromSlash(m.Dir))
	if err := command(dir, r.own, "go", edit...); err != nil {
		return err
	}
	return command(dir, r.own, "go", "mod", "tidy")
}

const unreleased = "## Unreleased\n"

var (
	untilRelease = regexp.MustCompile(`(?s)<!-- until the first release -->.*?<!-- end -->`)
	untilLine    = regexp.MustCompile(`(?m)^.*# until the first release.*\n`)
	emptyLines   = regexp.MustCompile(`\n{3,}`)
)

func withoutUntil(text string) string {
	short := untilLine.ReplaceAllString(untilRelease.ReplaceAllString(text, ""), "")
	if short == text {
		return text
	}
	return emptyLines.ReplaceAllString(short, "\n\n")
}

// writeDocuments gives the changes their version, and removes what the documents have only until the first release.
func (r *release) writeDocuments() error {
	err := filepath.WalkDir(r.clone, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		short := withoutUntil(string(text))
		if short == string(text) {
			return nil
		}
		return os.WriteFile(path, []byte(short), 0o644)
	})
	if err != nil {
		return err
	}
	path := filepath.Join(r.clone, "CHANGELOG.md")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, after, found := strings.Cut(string(text), unreleased)
	notes, _, _ := strings.Cut(after, "\n## ")
	if !found || strings.TrimSpace(notes) == "" {
		return errors.New("CHANGELOG.md has nothing below the heading Unreleased: a release has a change that a user notices")
	}
	day := r.start.UTC().Format("2006-01-02")
	changed := fmt.Sprintf("%s%s\n## %s, %s\n%s", before, unreleased, r.version, day, after)
	if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
		return err
	}
	if err := os.RemoveAll(r.dist); err != nil {
		return err
	}
	if err := os.MkdirAll(r.dist, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.dist, "notes.md"), []byte(strings.TrimSpace(notes)+"\n"), 0o644)
}

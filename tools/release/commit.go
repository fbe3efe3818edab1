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
)

// The versions of the repository's own modules in a go.mod.
var ownVersion = regexp.MustCompile(`(\s` + regexp.QuoteMeta(root) + `(?:/\S+)?) v\S+`)

// commit makes the commits and tags. The first commit is for main, and has the tags of all modules but the command: who
// imports a module does not see its replace lines. `go install` refuses them, so the commit of the command stays beside
// main.
func (r *release) commit() error {
	if err := r.writeDocuments(); err != nil {
		return err
	}
	err := r.rewrite("go.mod", func(text string) string { return ownVersion.ReplaceAllString(text, "$1 "+r.version) })
	if err != nil {
		return err
	}
	libraries := slices.DeleteFunc(slices.Clone(r.modules), func(m module) bool { return m.dir == wmretry })
	if err := r.tag("release: "+r.version, libraries...); err != nil {
		return err
	}
	edit := []string{"mod", "edit"}
	for _, m := range libraries {
		edit = append(edit, "-dropreplace="+m.importPath())
	}
	r.ownGo()
	dir := filepath.Join(r.clone, filepath.FromSlash(wmretry))
	for _, step := range [][]string{edit, {"mod", "tidy"}} {
		if err := command(dir, r.own, "go", step...); err != nil {
			return err
		}
	}
	return r.tag("release: wmretry "+r.version, module{wmretry})
}

func (r *release) tag(subject string, released ...module) error {
	if _, err := git(r.clone, "commit", "--quiet", "--all", "-m", subject); err != nil {
		return err
	}
	for _, m := range released {
		if _, err := git(r.clone, "tag", "--annotate", m.tag(r.version), "-m", m.importPath()+" "+r.version); err != nil {
			return err
		}
	}
	return nil
}

// rewrite rewrites the files of the clone whose name ends so.
func (r *release) rewrite(ending string, rewritten func(text string) string) error {
	return filepath.WalkDir(r.clone, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ending) {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(path, []byte(rewritten(string(text))), 0o644)
	})
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
	if err := r.rewrite(".md", withoutUntil); err != nil {
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

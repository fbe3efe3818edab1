package main

import (
	"errors"
	"fmt"
	"os"
	"path"
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
	err := r.rewrite("*go.mod", func(text string) string { return ownVersion.ReplaceAllString(text, "$1 "+r.version) })
	if err != nil {
		return err
	}
	libraries := slices.DeleteFunc(slices.Clone(r.modules), func(dir string) bool { return dir == wmretry })
	if err := r.tag("release: "+r.version, libraries...); err != nil {
		return err
	}
	edit := []string{"mod", "edit"}
	for _, dir := range libraries {
		edit = append(edit, "-dropreplace="+path.Join(root, dir))
	}
	r.ownGo()
	if err := errors.Join(r.goIn(wmretry, nil, edit...), r.goIn(wmretry, nil, "mod", "tidy")); err != nil {
		return err
	}
	return r.tag("release: wmretry "+r.version, wmretry)
}

func (r *release) tag(subject string, modules ...string) error {
	_, err := git(r.clone, "commit", "--quiet", "--all", "-m", subject)
	for _, dir := range modules {
		if err == nil {
			_, err = git(r.clone, "tag", "--annotate", path.Join(dir, r.version), "-m", path.Join(root, dir)+" "+r.version)
		}
	}
	return err
}

// rewrite rewrites the files of the clone that match a pattern of git.
func (r *release) rewrite(pattern string, rewritten func(text string) string) error {
	files, err := git(r.clone, "ls-files", pattern)
	for file := range strings.FieldsSeq(files) {
		file = filepath.Join(r.clone, filepath.FromSlash(file))
		text, fault := os.ReadFile(file)
		err = errors.Join(err, fault, os.WriteFile(file, []byte(rewritten(string(text))), 0o644))
	}
	return err
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
	if err := r.rewrite("*.md", withoutUntil); err != nil {
		return err
	}
	page := filepath.Join(r.clone, "CHANGELOG.md")
	text, err := os.ReadFile(page)
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
	if err := os.WriteFile(page, []byte(changed), 0o644); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(r.dist), os.MkdirAll(r.dist, 0o755)); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.dist, "notes.md"), []byte(strings.TrimSpace(notes)+"\n"), 0o644)
}

// Command release prepares a release of all modules: a branch release/VERSION with a commit and a tag for each of them,
// and the archives of wmretry. It checks them as a user outside of the repository would, and pushes nothing. It works
// in a temporary clone: a release that fails leaves no branch and no tag. Run it by `make release VERSION=v1.2.3`.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/tools/modules"
)

func main() {
	all := strings.Join(platforms, ",")
	wanted := flag.String("platforms", all, "the platforms that get an archive")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "release: it needs one argument, the version, such as v0.1.0")
		os.Exit(64)
	}
	if err := run(flag.Arg(0), strings.Split(*wanted, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// A module of version 2 or later has another path.
var versionForm = regexp.MustCompile(`^v[01]\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)

// A release is one that is made.
type release struct {
	version  string
	checkout string // the repository that gets the result
	clone    string // of it, in a temporary folder
	temp     string
	dist     string // what is published besides the modules
	modules  []modules.Module
	own      []string // environment of the go command that makes the modules
	start    time.Time

	platforms []string // that get an archive
}

func run(version string, platforms []string) error {
	if !versionForm.MatchString(version) {
		return fmt.Errorf("VERSION is %q: it must be a semantic version of v0 or v1, such as v0.1.0 or v0.1.0-rc.1", version)
	}
	checkout, err := git(".", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	// The folder of a failed release is kept only by a killed process.
	temp, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	r := &release{
		version: version, checkout: checkout, clone: filepath.Join(temp, "watermill-retry"), temp: temp,
		dist: filepath.Join(checkout, "dist", version), start: time.Now(), platforms: platforms,
	}
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"clone", r.cloneCheckout},
		{"commits and tags", r.commit},
		{"module proxy", r.proxy},
		{"outside", r.outside},
		{"archives", r.archives},
		{"result", r.publish},
	} {
		if err := step.run(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Printf("%4.0f s  %s\n", time.Since(r.start).Seconds(), step.name)
	}
	r.printNext()
	return nil
}

func (r *release) branch() string { return "release/" + r.version }

// cloneCheckout clones the commit that is checked out.
func (r *release) cloneCheckout() error {
	if changed, err := git(r.checkout, "status", "--porcelain"); err != nil || changed != "" {
		return errors.Join(err, fmt.Errorf("a release is made from a commit: commit or remove\n%s", changed))
	}
	for _, name := range []string{"refs/tags/" + r.version, "refs/heads/" + r.branch()} {
		if _, err := git(r.checkout, "rev-parse", "--verify", "--quiet", name); err == nil {
			return fmt.Errorf("%s exists: choose another version, or delete it where it was not pushed", name)
		}
	}
	head, err := git(r.checkout, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	if _, err := git(r.temp, "clone", "--quiet", "--no-checkout", r.checkout, r.clone); err != nil {
		return err
	}
	// The clone has no configuration of the checkout.
	for _, name := range []string{"user.name", "user.email"} {
		if value, err := git(r.checkout, "config", name); err == nil {
			if _, err := git(r.clone, "config", name, value); err != nil {
				return err
			}
		}
	}
	if _, err := git(r.clone, "switch", "--quiet", "-c", r.branch(), head); err != nil {
		return err
	}
	r.modules, err = modules.Released(r.clone)
	return err
}

// publish moves the branch and the tags into the checkout.
func (r *release) publish() error {
	refs := []string{r.branch() + ":" + r.branch()}
	for _, m := range r.modules {
		tag := "refs/tags/" + m.Tag(r.version)
		refs = append(refs, tag+":"+tag)
	}
	_, err := git(r.checkout, append([]string{"fetch", "--quiet", "--atomic", "--no-tags", r.clone}, refs...)...)
	return err
}

func (r *release) printNext() {
	tags := make([]string, len(r.modules))
	for i, m := range r.modules {
		tags[i] = m.Tag(r.version)
	}
	dist, _ := filepath.Rel(r.checkout, r.dist)
	fmt.Printf(`
Nothing is pushed. Look at it: git log --stat main..%[1]s, and %[3]s. Then:

  git push --atomic origin %[1]s %[2]s
  git push origin %[4]s^{}:refs/heads/changelog-%[4]s   # for a pull request to main: it changes documents only
  gh release create %[4]s --verify-tag --notes-file %[3]s/notes.md %[3]s/wmretry_* %[3]s/checksums.txt
  docker buildx build --platform linux/amd64,linux/arm64 -f cmd/wmretry/Dockerfile -t IMAGE:%[4]s --push %[3]s

To drop it: git branch -D %[1]s && git tag -d %[2]s && rm -r %[3]s
`, r.branch(), strings.Join(tags, " "), dist, r.version)
}

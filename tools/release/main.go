// Command release prepares a release of all modules: two commits, a tag for each module, and the archives of wmretry.
// It checks them as a user outside of the repository would, and pushes nothing. It works in a temporary clone: a
// release that fails leaves no tag. Run it by `make release VERSION=v1.2.3`.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

func main() {
	all := strings.Join(platforms, ",")
	wanted := flag.String("platforms", all, "the platforms that get an archive")
	flag.Parse()
	if flag.NArg() < 2 {
		fmt.Fprintln(os.Stderr, "release: it needs the version, such as v0.1.0, and the folders of the modules")
		os.Exit(64)
	}
	if err := run(flag.Arg(0), flag.Args()[1:], strings.Split(*wanted, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// The path of the root module. That of a nested module begins with it.
const root = "github.com/tieredretry/watermill-retry"

// A module of version 2 or later has another path.
var versionForm = regexp.MustCompile(`^v[01]\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)

// A release is one that is made.
type release struct {
	version  string
	checkout string // the repository that gets the result
	clone    string // the clone of the repository, in a temporary folder
	temp     string
	dist     string   // what is published besides the modules
	modules  []string // their folders, of which "." is the root module
	own      []string // environment of the go command that makes the modules
	start    time.Time

	platforms []string // the platforms that get an archive
}

func run(version string, modules, platforms []string) error {
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
		version: version, checkout: checkout, clone: filepath.Join(temp, "watermill-retry"), temp: temp, modules: modules,
		dist: filepath.Join(checkout, "dist", version), start: time.Now(), platforms: platforms,
	}
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"clone", r.cloneCheckout},
		{"commits and tags", r.commit},
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

// cloneCheckout clones the commit that is checked out.
func (r *release) cloneCheckout() error {
	if changed, err := git(r.checkout, "status", "--porcelain"); err != nil || changed != "" {
		return errors.Join(err, fmt.Errorf("a release is made from a commit: commit or remove\n%s", changed))
	}
	if _, err := git(r.checkout, "rev-parse", "--verify", "--quiet", "refs/tags/"+r.version); err == nil {
		return fmt.Errorf("the tag %s exists: choose another version, or delete it where it was not pushed", r.version)
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
	_, err = git(r.clone, "switch", "--quiet", "--detach", head)
	return err
}

// publish moves the tags into the checkout.
func (r *release) publish() error {
	fetch := []string{"fetch", "--quiet", "--atomic", "--no-tags", r.clone}
	for _, tag := range r.tags() {
		fetch = append(fetch, "refs/tags/"+tag+":refs/tags/"+tag)
	}
	_, err := git(r.checkout, fetch...)
	return err
}

func (r *release) tags() (all []string) {
	for _, dir := range r.modules {
		all = append(all, path.Join(dir, r.version))
	}
	return all
}

func (r *release) printNext() {
	dist, _ := filepath.Rel(r.checkout, r.dist)
	fmt.Printf(`
Nothing is pushed. Look at it: git log --stat main..%[4]s, and %[2]s. Then:

  git push --atomic origin %[1]s
  git push origin %[3]s^{}:refs/heads/release-%[3]s   # for a pull request to main: documents, and versions in go.mod
  gh release create %[3]s --verify-tag --notes-file %[2]s/notes.md %[2]s/wmretry_* %[2]s/checksums.txt
  docker buildx build --platform linux/amd64,linux/arm64 -f cmd/wmretry/Dockerfile -t IMAGE:%[3]s --push %[2]s

To drop it: git tag -d %[1]s && rm -r %[2]s
`, strings.Join(r.tags(), " "), dist, r.version, path.Join(wmretry, r.version))
}

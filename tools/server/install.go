//go:build unix

package server

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Program finds a program in folders that match the patterns, the highest version first, or on the PATH. Where there
// is none, it installs the package. Those below the folder SERVERS come first, which .ci/newest-servers makes.
func Program(ctx context.Context, name, pack string, services []string, patterns ...string) (string, error) {
	if root := os.Getenv("SERVERS"); root != "" {
		var there []string
		for _, pattern := range append(patterns, "/usr/bin") {
			there = append(there, filepath.Join(root, pattern))
		}
		if path, found := Find(name, there...); found && strings.HasPrefix(path, root) {
			return path, nil
		}
	}
	path, found := Find(name, patterns...)
	if found {
		return path, nil
	}
	if whyNot := Usable(ctx); whyNot != "" {
		return "", fmt.Errorf("%s is not installed, and apt-get cannot install it (%s): install the package %s", name,
			whyNot, pack)
	}
	_, _ = fmt.Fprintf(os.Stderr, "installing %s with apt-get, once\n", pack)
	there := func() bool { path, found = Find(name, patterns...); return found }
	if err := Install(ctx, there, []string{pack}, services...); err != nil {
		return "", fmt.Errorf("cannot install %s: %w; install it yourself", pack, err)
	}
	if !there() {
		return "", fmt.Errorf("%s is installed, but %s is neither on the PATH nor in %s", pack, name,
			strings.Join(patterns, ", "))
	}
	return path, nil
}

// Find finds a program in folders that match the patterns, the highest version first, or on the PATH.
func Find(name string, patterns ...string) (path string, found bool) {
	var all []string
	for _, pattern := range patterns {
		matches, _ := filepath.Glob(filepath.Join(pattern, name))
		slices.SortFunc(matches, func(a, b string) int { return version(b) - version(a) })
		all = append(all, matches...)
	}
	if path, err := exec.LookPath(name); err == nil {
		all = append(all, path)
	}
	for _, path := range all {
		if about, err := os.Stat(path); err == nil && about.Mode()&0o111 != 0 {
			return path, true
		}
	}
	return "", false
}

// version returns the number in a path such as /usr/lib/postgresql/15/bin/initdb, or 0.
func version(path string) int {
	for _, word := range strings.Split(path, "/") {
		var n int
		if _, err := fmt.Sscanf(word, "%d", &n); err == nil {
			return n
		}
	}
	return 0
}

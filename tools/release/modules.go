package main

import (
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// The path of the root module. That of a nested module begins with it.
const root = "github.com/tieredretry/watermill-retry"

// kept are the folders of modules that are not released: tests, tools, demos.
var kept = []string{"backends/conformance", "example", "integration", "tools"}

// A module is one that is released, with the same version as all others.
type module struct {
	dir string // from the root of the repository, with slashes; "." is the root module
}

// importPath returns the import path of the module.
func (m module) importPath() string { return path.Join(root, m.dir) }

// tag returns the tag of a version of the module.
func (m module) tag(version string) string { return path.Join(m.dir, version) }

// released returns the modules that are released, the root module first.
func released(folder string) (found []module, err error) {
	err = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(folder, path)
		dir = filepath.ToSlash(dir)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (slices.Contains(kept, dir) || len(dir) > 1 && strings.HasPrefix(entry.Name(), ".")):
			return filepath.SkipDir
		case entry.Name() == "go.mod":
			found = append(found, module{filepath.ToSlash(filepath.Dir(dir))})
		}
		return nil
	})
	slices.SortFunc(found, func(a, b module) int { return strings.Compare(a.dir, b.dir) })
	return found, err
}

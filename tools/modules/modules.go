// Package modules knows which modules of the repository are released.
package modules

import (
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Root is the path of the root module. That of a nested module begins with it.
const Root = "github.com/tieredretry/watermill-retry"

// kept are the folders of modules that are not released: tests, tools, demos.
var kept = []string{"backends/conformance", "example", "integration", "tools"}

// A Module is one that is released, with the same version as all others.
type Module struct {
	Dir string // from the root of the repository, with slashes; "." is the root module
}

// Path returns the import path of the module.
func (m Module) Path() string { return path.Join(Root, m.Dir) }

// Tag returns the tag of a version of the module.
func (m Module) Tag(version string) string { return path.Join(m.Dir, version) }

// Released returns the modules that are released, the root module first.
func Released(root string) (found []Module, err error) {
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, path)
		dir = filepath.ToSlash(dir)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (slices.Contains(kept, dir) || len(dir) > 1 && strings.HasPrefix(entry.Name(), ".")):
			return filepath.SkipDir
		case entry.Name() == "go.mod":
			found = append(found, Module{filepath.ToSlash(filepath.Dir(dir))})
		}
		return nil
	})
	slices.SortFunc(found, func(a, b Module) int { return strings.Compare(a.Dir, b.Dir) })
	return found, err
}

// Package modules knows which modules of the repository are released, and in which order.
package modules

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os/exec"
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
	Dir      string   // from the root of the repository, with slashes; "." is the root module
	Path     string   // its import path
	Requires []string // import paths of other modules of the repository
}

// Tag returns the tag of a version of the module.
func (m Module) Tag(version string) string {
	if m.Dir == "." {
		return version
	}
	return m.Dir + "/" + version
}

// Released returns the modules that are released. A module comes after those that it requires.
func Released(root string) ([]Module, error) {
	var found []Module
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
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
		case entry.Name() != "go.mod":
			return nil
		}
		m, err := read(filepath.Dir(path))
		m.Dir = filepath.ToSlash(filepath.Dir(filepath.FromSlash(dir)))
		found = append(found, m)
		return err
	})
	if err != nil {
		return nil, err
	}
	return ordered(found)
}

func read(dir string) (Module, error) {
	var file struct {
		Module  struct{ Path string }
		Require []struct{ Path string }
	}
	edit := exec.Command("go", "mod", "edit", "-json")
	edit.Dir = dir
	var stderr bytes.Buffer
	edit.Stderr = &stderr
	output, err := edit.Output()
	if err != nil {
		return Module{}, fmt.Errorf("go mod edit -json in %s: %w\n%s", dir, err, stderr.Bytes())
	}
	if err := json.Unmarshal(output, &file); err != nil {
		return Module{}, err
	}
	m := Module{Path: file.Module.Path}
	for _, r := range file.Require {
		if r.Path == Root || strings.HasPrefix(r.Path, Root+"/") {
			m.Requires = append(m.Requires, r.Path)
		}
	}
	return m, nil
}

// ordered puts each module after those that it requires, and else sorts by folder.
func ordered(found []Module) (all []Module, err error) {
	slices.SortFunc(found, func(a, b Module) int { return strings.Compare(a.Dir, b.Dir) })
	done := map[string]bool{}
	for len(all) < len(found) {
		next := slices.IndexFunc(found, func(m Module) bool {
			return !done[m.Path] && !slices.ContainsFunc(m.Requires, func(path string) bool { return !done[path] })
		})
		if next < 0 {
			return nil, fmt.Errorf("modules require each other, or one that is not released: only %v can be released", all)
		}
		all = append(all, found[next])
		done[found[next].Path] = true
	}
	return all, nil
}

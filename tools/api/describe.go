package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tieredretry/watermill-retry/tools/modules"
)

// file returns the path of a module's API.
func file(root string, m modules.Module) string {
	name := strings.ReplaceAll(m.Dir, "/", "-")
	if m.Dir == "." {
		name = "watermill-retry"
	}
	return filepath.Join(root, "api", name+".txt")
}

// describe returns the exported API of a module's packages, one line for each name: its package, and what it is. It
// returns "" for a module without packages that an app can import. A type of an internal package is described
// where it has an exported alias. Names of parameters are left out: a call does not depend on them.
func describe(root string, m modules.Module) (string, error) {
	paths, exports, err := list(filepath.Join(root, filepath.FromSlash(m.Dir)), m.Path())
	if err != nil || len(paths) == 0 {
		return "", err
	}
	packages := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		name, found := exports[path]
		if !found {
			return nil, fmt.Errorf("go list has not built %s", path)
		}
		return os.Open(name)
	})
	d := &description{imports: map[string]string{}}
	for _, path := range paths {
		p, err := packages.Import(path)
		if err != nil {
			return "", err
		}
		d.describePackage(p)
	}
	for path, name := range d.imports {
		d.lines = append(d.lines, fmt.Sprintf("import %s %q", name, path))
	}
	slices.Sort(d.lines)
	return strings.Join(slices.Compact(d.lines), "\n") + "\n", nil
}

// list returns the packages of a module that an app can import, and the files with the types of all that they import.
func list(dir, module string) (paths []string, exports map[string]string, err error) {
	command := exec.Command("go", "list", "-deps", "-export", "-json=ImportPath,Name,Export,DepOnly", "./...")
	command.Dir = dir
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("go list in %s: %w\n%s", dir, err, stderr.Bytes())
	}
	exports = map[string]string{}
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var p struct {
			ImportPath, Name, Export string
			DepOnly                  bool
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return paths, exports, nil
		} else if err != nil {
			return nil, nil, err
		}
		exports[p.ImportPath] = p.Export
		if p.Export != "" && !p.DepOnly && p.Name != "main" && !slices.ContainsFunc(private, func(folder string) bool {
			return strings.Contains(p.ImportPath[len(modules.Root):]+"/", folder)
		}) {
			paths = append(paths, p.ImportPath)
		}
	}
}

// private are folders with packages that no app imports.
var private = []string{"/internal/", "/tools/", "/example/"}

type description struct {
	lines   []string
	imports map[string]string // names of packages outside of the repository, by path
}

func (d *description) add(p *types.Package, format string, args ...any) {
	folder := strings.TrimPrefix(p.Path(), modules.Root+"/")
	d.lines = append(d.lines, folder+": "+fmt.Sprintf(format, args...))
}

func (d *description) describePackage(p *types.Package) {
	for _, name := range p.Scope().Names() {
		object := p.Scope().Lookup(name)
		if !object.Exported() {
			continue
		}
		switch o := object.(type) {
		case *types.Const:
			d.add(p, "const %s %s = %s", name, d.text(o.Type()), o.Val().ExactString())
		case *types.Var:
			d.add(p, "var %s %s", name, d.text(o.Type()))
		case *types.Func:
			d.add(p, "func %s%s", name, d.signature(o.Type()))
		case *types.TypeName:
			d.describeType(o)
		}
	}
}

func (d *description) describeType(name *types.TypeName) {
	p := name.Pkg()
	named, isNamed := types.Unalias(name.Type()).(*types.Named)
	if name.IsAlias() {
		d.add(p, "type %s = %s", name.Name(), d.text(types.Unalias(name.Type())))
		if !isNamed || !ours(named.Obj().Pkg()) || !strings.Contains(named.Obj().Pkg().Path(), "/internal/") {
			return
		}
	}
	declared := name.Name() + d.typeParameters(named.TypeParams())
	switch under := named.Underlying().(type) {
	case *types.Struct:
		d.add(p, "type %s struct", declared)
		for i := range under.NumFields() {
			switch f := under.Field(i); {
			case f.Exported() && f.Embedded():
				d.add(p, "type %s struct, embedded %s", declared, d.text(f.Type()))
			case f.Exported():
				d.add(p, "type %s struct, %s %s", declared, f.Name(), d.text(f.Type()))
			}
		}
	case *types.Interface:
		d.add(p, "type %s interface", declared)
		for i := range under.NumMethods() {
			if f := under.Method(i); f.Exported() {
				d.add(p, "type %s interface, %s%s", declared, f.Name(), d.signature(f.Type()))
			} else {
				d.add(p, "type %s interface, methods that only its package has", declared)
			}
		}
	default:
		d.add(p, "type %s %s", declared, d.text(under))
	}
	if types.IsInterface(named) {
		return
	}
	values := types.NewMethodSet(named)
	for method := range types.NewMethodSet(types.NewPointer(named)).Methods() {
		f := method.Obj().(*types.Func)
		if !f.Exported() || !ours(f.Pkg()) {
			continue
		}
		star := "*"
		if values.Lookup(f.Pkg(), f.Name()) != nil {
			star = ""
		}
		d.add(p, "method (%s%s) %s%s", star, declared, f.Name(), d.signature(method.Type()))
	}
}

func ours(p *types.Package) bool {
	return p.Path() == modules.Root || strings.HasPrefix(p.Path(), modules.Root+"/")
}

// text returns a type, and remembers what must be imported for it.
func (d *description) text(t types.Type) string { return types.TypeString(t, d.qualify) }

func (d *description) qualify(p *types.Package) string {
	if ours(p) {
		return strings.TrimPrefix(p.Path(), modules.Root+"/")
	}
	for path, name := range d.imports {
		if name == p.Name() && path != p.Path() {
			return p.Path()
		}
	}
	if first, _, _ := strings.Cut(p.Path(), "/"); strings.Contains(first, ".") {
		d.imports[p.Path()] = p.Name()
	}
	return p.Name()
}

// signature returns the type of a function, from its type parameters on.
func (d *description) signature(t types.Type) string {
	s := t.(*types.Signature)
	parameters := d.tuple(s.Params())
	if s.Variadic() {
		last := len(parameters) - 1
		parameters[last] = "..." + strings.TrimPrefix(parameters[last], "[]")
	}
	text := d.typeParameters(s.TypeParams()) + "(" + strings.Join(parameters, ", ") + ")"
	switch results := d.tuple(s.Results()); len(results) {
	case 0:
	case 1:
		text += " " + results[0]
	default:
		text += " (" + strings.Join(results, ", ") + ")"
	}
	return text
}

func (d *description) tuple(t *types.Tuple) (all []string) {
	for v := range t.Variables() {
		all = append(all, d.text(v.Type()))
	}
	return all
}

func (d *description) typeParameters(list *types.TypeParamList) string {
	if list.Len() == 0 {
		return ""
	}
	var all []string
	for p := range list.TypeParams() {
		all = append(all, p.Obj().Name()+" "+d.text(p.Constraint()))
	}
	return "[" + strings.Join(all, ", ") + "]"
}

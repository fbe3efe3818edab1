package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// activeMutation is the environment variable that says which mutation a program has that was built with all of them.
const activeMutation = "ACTIVE_MUTATION"

// switched is one build with many mutations: each function that a mutation changes begins with a call of the changed
// function, for when that mutation is active. So a folder of tests is built once, and not for each mutation.
type switched struct {
	overlay string          // for the flag -overlay of the go command
	has     map[string]bool // the names of its mutations: those that change the body of one function
}

// writeSwitched writes to a folder what the build of these mutations needs.
func writeSwitched(folder string, of []mutation) (*switched, error) {
	s := &switched{overlay: filepath.Join(folder, "all.json"), has: map[string]bool{}}
	files := map[string][]mutation{}
	for _, m := range of {
		files[m.file] = append(files[m.file], m)
	}
	replace := map[string]string{}
	write := func(path string, text []byte) error {
		original, err := filepath.Abs(path)
		replace[original] = filepath.Join(folder, strings.ReplaceAll(path, "/", "_"))
		return errors.Join(err, os.WriteFile(replace[original], text, 0o600))
	}
	for path, mutations := range files {
		text, packageName, err := switchFile(path, mutations, s.has)
		if err != nil {
			return nil, err
		}
		variable := fmt.Sprintf("package %s\n\nimport \"os\"\n\nvar activeMutation = os.Getenv(%q)\n", packageName,
			activeMutation)
		err = errors.Join(write(path, text), write(filepath.Join(filepath.Dir(path), "active_mutation.go"),
			[]byte(variable)))
		if err != nil {
			return nil, err
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	return s, errors.Join(err, os.WriteFile(s.overlay, list, 0o600))
}

// switchFile returns the text of a file with mutations, and the name of its package. It adds their names to has.
func switchFile(path string, of []mutation, has map[string]bool) (text []byte, packageName string, err error) {
	text, err = os.ReadFile(path)
	if err != nil {
		return nil, "", err
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, "", err
	}
	changed := map[int]string{} // by the offset of a function's body
	for _, m := range of {
		if at, call := m.switchIn(file, string(text)); call != "" {
			changed[at] += call
			has[m.name] = true
		}
	}
	offsets := make([]int, 0, len(changed))
	for at := range changed {
		offsets = append(offsets, at)
	}
	slices.Sort(offsets)
	slices.Reverse(offsets)
	for _, at := range offsets {
		text = slices.Insert(text, at, []byte(changed[at])...)
	}
	return text, file.Name.Name, nil
}

// switchIn returns the offset of the body of the function that m changes, and what to insert there. It returns no text
// for a mutation that needs a build of its own.
func (m mutation) switchIn(file *ast.File, text string) (at int, call string) {
	if strings.Count(text, m.old) != 1 {
		return 0, ""
	}
	change := strings.Index(text, m.old)
	before, after := change+commonPrefix(m.old, m.new), change+len(m.old)
	rest := m.new[commonPrefix(m.old, m.new):]
	for _, declaration := range file.Decls {
		f, ok := declaration.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		begin, end := offset(file, f.Body.Lbrace)+1, offset(file, f.Body.Rbrace)
		if before < begin || before > end {
			continue
		}
		// The end of the function may be a part of old and of new.
		for after > end && strings.HasSuffix(rest, text[after-1:after]) {
			after, rest = after-1, rest[:len(rest)-1]
		}
		body := text[begin:before] + rest + text[min(after, end):end]
		// What asks for its caller must be called as it is.
		if after > end || strings.Contains(body, "recover()") || strings.Contains(body, "runtime.Caller") {
			return 0, ""
		}
		return begin, m.call(f, body, func(n ast.Node) string {
			return text[offset(file, n.Pos()):offset(file, n.End())]
		})
	}
	return 0, ""
}

// call returns the statement that calls a function with this body when m is active.
func (m mutation) call(f *ast.FuncDecl, body string, source func(ast.Node) string) string {
	var parameters, arguments []string
	for _, field := range f.Type.Params.List {
		for _, name := range field.Names {
			if name.Name == "_" {
				continue
			}
			argument := name.Name
			if _, variadic := field.Type.(*ast.Ellipsis); variadic {
				argument += "..."
			}
			parameters = append(parameters, name.Name+" "+source(field.Type))
			arguments = append(arguments, argument)
		}
	}
	results, returns, ends := "", "", "return\n"
	if f.Type.Results != nil {
		results, returns, ends = source(f.Type.Results), "return ", ""
	}
	return fmt.Sprintf("\nif activeMutation == %q {\n%sfunc(%s) %s {%s\n}(%s)\n%s}\n", m.name, returns,
		strings.Join(parameters, ", "), results, body, strings.Join(arguments, ", "), ends)
}

func offset(file *ast.File, p token.Pos) int { return int(p - file.FileStart) }

func commonPrefix(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

package main

import (
	"go/format"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const switchSource = `package p

func (s *set[T]) add(_ int, key string, values ...T) (n int, err error) {
	n = len(values) + 1
	return n, nil
}

func (s *set[T]) clear() { s.values = nil }

func caught() { _ = recover() }

const limit = 10
`

func TestSwitchFile(t *testing.T) {
	for name, test := range map[string]struct {
		old, new string
		want     string // "" for a build of its own
	}{
		"parameters and results": {
			"len(values) + 1", "len(values)",
			"{\nif activeMutation == \"m\" {\nreturn func(key string, values ...T) (n int, err error) {\n" +
				"\tn = len(values)\n\treturn n, nil\n\n}(key, values...)\n}\n\n\tn = len(values) + 1\n",
		},
		"no results": {
			"s.values = nil", "",
			"{\nif activeMutation == \"m\" {\nfunc()  {  \n}()\nreturn\n}\n s.values = nil }",
		},
		"with the end of the function": {
			"\treturn n, nil\n}", "\treturn 0, nil\n}", "\n\treturn 0, nil\n\n}(key, values...)\n}\n\n\tn =",
		},
		"what asks for its caller": {"_ = recover()", "println(recover())", ""},
		"not in a function":        {"limit = 10", "limit = 11", ""},
		"twice":                    {"func", "func", ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "p.go")
			if err := os.WriteFile(path, []byte(switchSource), 0o600); err != nil {
				t.Fatal(err)
			}
			has := map[string]bool{}
			text, packageName, err := switchFile(path, []mutation{{name: "m", old: test.old, new: test.new}}, has)
			if err != nil || packageName != "p" {
				t.Fatal(packageName, err)
			}
			if has["m"] != (test.want != "") || !strings.Contains(string(text), test.want) {
				t.Errorf("has %v: %s", has, text)
			}
			if _, err := format.Source(text); err != nil {
				t.Error(err)
			}
		})
	}
}

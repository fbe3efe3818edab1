package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// ownGo sets the environment of the go command. It takes the modules of the repository from the clone, by the names of
// their tags, and those of others from the usual module cache and proxy. Its module cache is a new one: the versions
// are not final.
func (r *release) ownGo() {
	r.own = append(os.Environ(),
		"GOWORK=off", "GOFLAGS=-modcacherw -trimpath", "GOMODCACHE="+filepath.Join(r.temp, "mod"),
		"GOPROXY=file://"+filepath.ToSlash(goEnv("GOMODCACHE"))+"/cache/download,"+goEnv("GOPROXY"),
		"GOPRIVATE="+root, "GOBIN="+filepath.Join(r.temp, "bin"),
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url.file://"+filepath.ToSlash(r.clone)+".insteadOf",
		"GIT_CONFIG_VALUE_0=https://"+root,
	)
}

var program = regexp.MustCompile("(?s)```go\n(package main\n.*?)```")

// outside does what users do, in modules of their own: the program of the documents, every module, the command.
func (r *release) outside() error {
	page, err := os.ReadFile(filepath.Join(r.clone, "docs", "getting-started.md"))
	if err != nil {
		return err
	}
	source := program.FindSubmatch(page)
	if source == nil {
		return errors.New("docs/getting-started.md has no program")
	}
	app := filepath.Join(r.temp, "billing")
	if err := errors.Join(os.Mkdir(app, 0o755),
		os.WriteFile(filepath.Join(app, "main.go"), source[1], 0o644)); err != nil {
		return err
	}
	get, packages := []string{"get"}, []string{"list", "-deps"}
	for _, dir := range r.modules {
		if dir != wmretry {
			get, packages = append(get, path.Join(root, dir, "...@"+r.version)), append(packages, path.Join(root, dir, "..."))
		}
	}
	for _, step := range [][]string{
		{"mod", "init", "example.com/billing"},
		{"get", root + "@" + r.version},
		{"mod", "tidy"},
		{"build", "-o", os.DevNull, "."},
		get,
		packages,
		{"install", path.Join(root, wmretry) + "@" + r.version},
	} {
		if err := command(app, r.own, "go", step...); err != nil {
			return err
		}
	}
	printed, err := output(app, r.own, filepath.Join(r.temp, "bin", "wmretry"), "version")
	if err != nil {
		return err
	}
	if strings.Count(printed, " "+r.version+"\n") < 2 {
		return fmt.Errorf("wmretry version does not print %s as its version and that of the library:\n%s", r.version, printed)
	}
	return nil
}

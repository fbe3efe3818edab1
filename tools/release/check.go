package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/tieredretry/watermill-retry/tools/modules"
)

// others returns where modules of others come from: the download folder of the module cache, then the usual proxy.
func others() string {
	return "file://" + filepath.ToSlash(goEnv("GOMODCACHE")) + "/cache/download," + goEnv("GOPROXY")
}

// ownGo sets the environment for the go command that makes the modules. It takes the modules of the repository from the
// clone, by the names of their tags, as a module proxy does. Its module cache is a new one: the versions are not final.
func (r *release) ownGo() {
	r.own = append(os.Environ(),
		"GOWORK=off", "GOFLAGS=-modcacherw -trimpath", "GOMODCACHE="+filepath.Join(r.temp, "mod"),
		"GOPROXY="+others(), "GOPRIVATE="+modules.Root,
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url.file://"+filepath.ToSlash(r.clone)+".insteadOf",
		"GIT_CONFIG_VALUE_0=https://"+modules.Root,
	)
}

// proxy writes the modules as a module proxy has them, in a folder.
func (r *release) proxy() error {
	args := []string{"mod", "download"}
	for _, m := range r.modules {
		args = append(args, m.Path+"@"+r.version)
	}
	if err := command(r.temp, r.own, "go", args...); err != nil {
		return err
	}
	folder := path.Dir(modules.Root)
	return os.CopyFS(filepath.Join(r.dist, "proxy", filepath.FromSlash(folder)),
		os.DirFS(filepath.Join(r.temp, "mod", "cache", "download", filepath.FromSlash(folder))))
}

var program = regexp.MustCompile("(?s)```go\n(package main\n.*?)```")

// outside does what users do, in modules of their own: the program of the documents, every module, the command.
func (r *release) outside() error {
	environment := append(os.Environ(),
		"GOWORK=off", "GOFLAGS=-modcacherw -trimpath", "GOSUMDB=off", "GOMODCACHE="+filepath.Join(r.temp, "outside"),
		"GOPROXY=file://"+filepath.ToSlash(r.dist)+"/proxy,"+others(), "GOBIN="+filepath.Join(r.temp, "bin"),
	)
	page, err := os.ReadFile(filepath.Join(r.clone, "docs", "getting-started.md"))
	if err != nil {
		return err
	}
	source := program.FindSubmatch(page)
	if source == nil {
		return errors.New("docs/getting-started.md has no program")
	}
	app := filepath.Join(r.temp, "billing")
	if err := os.Mkdir(app, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(app, "main.go"), source[1], 0o644); err != nil {
		return err
	}
	get, packages := []string{"get"}, []string{"list", "-deps"}
	commands := []string{"install"}
	for _, m := range r.modules {
		if strings.HasPrefix(m.Dir, "cmd/") {
			commands = append(commands, m.Path+"@"+r.version)
			continue
		}
		get = append(get, m.Path+"/...@"+r.version)
		packages = append(packages, m.Path+"/...")
	}
	for _, step := range [][]string{
		{"mod", "init", "example.com/billing"},
		{"get", modules.Root + "@" + r.version},
		{"mod", "tidy"},
		{"build", "-o", os.DevNull, "."},
		get,
		packages,
		commands,
	} {
		if err := command(app, environment, "go", step...); err != nil {
			return err
		}
	}
	printed, err := output(app, environment, filepath.Join(r.temp, "bin", "wmretry"), "version")
	if err != nil {
		return err
	}
	if strings.Count(printed, " "+r.version+"\n") < 2 {
		return fmt.Errorf("wmretry version does not print %s as its version and that of the library:\n%s", r.version, printed)
	}
	return nil
}

package amqp3_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestBuildOutside builds an app in a module of its own, as a user does: the internal packages of the root module can be imported from
// here, and the requirements of both modules are enough.
func TestBuildOutside(t *testing.T) {
	t.Parallel()
	here, err := filepath.Abs(".")
	require.NoError(t, err)
	app := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(app, name), []byte(text), 0o600))
	}
	write("go.mod", `module example.com/app

go 1.25.0

require (
	github.com/tieredretry/watermill-retry v0.0.0
	github.com/tieredretry/watermill-retry/config/amqp3 v0.0.0
)

replace github.com/tieredretry/watermill-retry => `+filepath.Join(here, "../..")+`

replace github.com/tieredretry/watermill-retry/config/amqp3 => `+here+`
`)
	write("main.go", `package main

import (
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/tieredretry/watermill-retry/config/amqp3"
)

func main() {
	_, err := amqp3.Connect(amqp3.Config{AMQP: amqp.NewDurableQueueConfig("")}, nil)
	println(err.Error())
}
`)
	sums, err := os.ReadFile("go.sum")
	require.NoError(t, err)
	write("go.sum", string(sums))
	run := func(folder string, args ...string) string {
		command := exec.Command("go", args...)
		command.Dir, command.Env = folder, append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -mod=mod", "GOWORK=off")
		var complaints strings.Builder
		command.Stderr = &complaints
		output, err := command.Output()
		require.NoError(t, err, "go %v: %s", args, &complaints)
		return string(output)
	}
	run(app, "build", "-o", os.DevNull, ".")

	// A module that neither go.mod requires would be added at its newest version.
	modules := []string{"list", "-deps", "-f", "{{with .Module}}{{.Path}} {{.Version}}{{end}}"}
	required := strings.Split(run(here, append(modules, "-test", ".")...), "\n")
	for module := range strings.SplitSeq(run(app, append(modules, ".")...), "\n") {
		if !strings.HasPrefix(module, "example.com/app") && !strings.HasPrefix(module, "github.com/tieredretry/") {
			assert.Contains(t, required, module)
		}
	}
}

package amqp3_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

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
	run := func(args ...string) {
		command := exec.Command("go", args...)
		command.Dir, command.Env = app, append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off")
		output, err := command.CombinedOutput()
		require.NoError(t, err, "go %v: %s", args, output)
	}
	run("mod", "tidy")
	run("build", "-o", os.DevNull, ".")
}

//go:build unix

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/tools/server"
)

// dockerAnswers checks the daemon: many machines have the client without a daemon.
func dockerAnswers(ctx context.Context) string {
	if _, err := exec.LookPath("docker"); err != nil {
		return "not installed"
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if exec.CommandContext(ctx, "docker", "info").Run() != nil {
		return "its daemon does not answer"
	}
	return ""
}

func startContainer(ctx context.Context) (broker, error) {
	image := os.Getenv("DEVBROKER_IMAGE")
	if image == "" {
		image = "rabbitmq:4-management"
	}
	say("starting %s with Docker", image)
	name := "devbroker-" + strings.ToLower(rand.Text()[:8])
	b := broker{Container: name, Variables: map[string]string{"BROKER_CTL": "docker exec " + name + " rabbitmqctl -q"}}
	if _, err := docker(ctx, "run", "--detach", "--name", name,
		"--publish", "127.0.0.1::5672", "--publish", "127.0.0.1::15672", "--publish", "127.0.0.1::15692",
		"--publish", "127.0.0.1::5671", image); err != nil {
		// a signal may have interrupted the creation
		_ = exec.Command("docker", "rm", "--force", "--volumes", name).Run()
		return broker{}, fmt.Errorf("%w; try another image in DEVBROKER_IMAGE, or set AMQP_URL", err)
	}
	if err := b.awaitContainer(ctx); err != nil {
		output, _ := exec.Command("docker", "logs", "--tail", "20", name).CombinedOutput()
		b.stop()
		return broker{}, fmt.Errorf("%s did not start: %w. The end of its log:\n%s\n"+
			"Try another image in DEVBROKER_IMAGE, or set AMQP_URL", image, err, output)
	}
	return b, nil
}

func (b *broker) awaitContainer(ctx context.Context) error {
	for name, of := range map[string]struct{ port, before, after string }{
		"AMQP_URL":            {"5672/tcp", "amqp://guest:guest@", "/"},
		"AMQP_MANAGEMENT_URL": {"15672/tcp", "http://", ""},
		"AMQP_PROMETHEUS_URL": {"15692/tcp", "http://", ""},
		"AMQP_TLS_ADDRESS":    {"5671/tcp", "", ""}, // the tests start a listener there
	} {
		address, err := docker(ctx, "port", b.Container, of.port)
		if err != nil {
			return err
		}
		b.Variables[name] = of.before + address + of.after
	}
	return server.Await(ctx, nil, b.ready)
}

func removeContainer(name string) {
	if _, err := docker(context.Background(), "rm", "--force", "--volumes", name); err != nil {
		say("%v", err)
	}
}

// docker runs one command and returns the first line that it prints. A pull shows its progress.
func docker(ctx context.Context, args ...string) (string, error) {
	var output bytes.Buffer
	process := exec.CommandContext(ctx, "docker", args...)
	process.Stdout, process.Stderr = &output, os.Stderr
	if err := process.Run(); err != nil {
		return "", fmt.Errorf("docker %s: %w", args[0], err)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(output.String()), "\n")
	return line, nil
}

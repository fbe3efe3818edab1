//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// grafanaImage is that of compose.yaml.
const grafanaImage = "grafana/grafana:12.4.0"

// startGrafana starts Grafana with the boards in a container, where Docker answers. It returns the address, or why there is none.
func startGrafana(ctx context.Context, boards, prometheus string) (at string, stop func(), err error) {
	stop = func() {}
	docker, err := exec.LookPath("docker")
	if err != nil {
		return "", stop, errors.New("docker is not installed")
	}
	asking, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := exec.CommandContext(asking, docker, "info").Run(); err != nil {
		return "", stop, errors.New("docker is installed, but its daemon does not answer")
	}
	if boards, err = filepath.Abs(boards); err != nil {
		return "", stop, err
	}
	provisioning, err := filepath.Abs("grafana/provisioning")
	if err != nil {
		return "", stop, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", stop, err
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	_ = listener.Close()
	name := "watermill-retry-grafana-" + port
	pulling, cancelPull := context.WithTimeout(ctx, 3*time.Minute)
	defer cancelPull()
	output, err := exec.CommandContext(pulling, docker, "run", "--detach", "--rm", "--network", "host", "--name", name,
		"--env", "GF_SERVER_HTTP_ADDR=127.0.0.1", "--env", "GF_SERVER_HTTP_PORT="+port,
		"--env", "GF_AUTH_ANONYMOUS_ENABLED=true", "--env", "GF_AUTH_ANONYMOUS_ORG_ROLE=Editor", "--env", "PROMETHEUS_URL="+prometheus, "--env", "JAEGER_URL=http://127.0.0.1:16686",
		"--volume", provisioning+":/etc/grafana/provisioning:ro", "--volume", boards+":/var/lib/grafana/dashboards:ro", grafanaImage).CombinedOutput()
	stop = func() { _ = exec.Command(docker, "rm", "--force", name).Run() }
	if err != nil {
		stop()
		lines := strings.Split(strings.TrimSpace(string(output)), "\n")
		return "", func() {}, fmt.Errorf("docker run: %s", lines[len(lines)-1])
	}
	return "http://127.0.0.1:" + port + "/dashboards", stop, nil
}

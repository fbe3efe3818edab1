//go:build unix

// Package prometheus starts a private Prometheus, for the tests and the example of the boards and alerts.
// It is a tool of this repository and not part of the library's API: it can change in any version.
package prometheus

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/tieredretry/watermill-retry/tools/server"
)

const (
	pack    = "prometheus" // the package of Debian and Ubuntu, which has promtool as well
	service = "prometheus.service"
)

// Start starts an installed Prometheus, or that of the Debian package, which it installs. The text is its
// configuration file. URL is that of its HTTP API and page. All data is in a temporary folder, which Stop removes.
func Start(ctx context.Context, config string) (*server.Server, error) {
	path, err := program(ctx, "prometheus")
	if err != nil {
		return nil, err
	}
	return server.Start(ctx, server.Plan{
		Name: "Prometheus", Ending: syscall.SIGTERM, Answers: ready,
		Command: func(folder string, port int) (string, []string, error) {
			file, address := filepath.Join(folder, "prometheus.yml"), fmt.Sprintf("127.0.0.1:%d", port)
			return "http://" + address, []string{
				path, "--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(folder, "data"),
				"--web.listen-address=" + address, "--log.level=warn",
			}, os.WriteFile(file, []byte(config), 0o600)
		},
	})
}

func ready(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/-/ready", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s/-/ready answers %s", url, response.Status)
	}
	return nil
}

// Promtool runs the promtool of the same package, and returns what it prints. The error contains it, too.
func Promtool(ctx context.Context, args ...string) (string, error) {
	path, err := program(ctx, "promtool")
	if err != nil {
		return "", err
	}
	output, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	if err != nil {
		return string(output), fmt.Errorf("promtool %s: %w\n%s", strings.Join(args, " "), err, output)
	}
	return string(output), nil
}

func program(ctx context.Context, name string) (string, error) {
	return server.Program(ctx, name, pack, []string{service})
}

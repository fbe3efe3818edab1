//go:build unix

package main

import (
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeDocker installs a docker client that prints the addresses of the two servers, and logs its arguments.
func fakeDocker(t *testing.T, amqp, management string) (log string) {
	t.Helper()
	folder := t.TempDir()
	log = filepath.Join(folder, "log")
	script := `#!/bin/sh
echo "$*" >>` + quote(log) + `
case "$1 $3" in
"port 5672/tcp") echo ` + quote(amqp) + `; echo "[::1]:1" ;;
"port 15692/tcp") echo 127.0.0.1:15692 ;;
"port 5671/tcp") echo 127.0.0.1:5671 ;;
"port 15672/tcp") echo ` + quote(management) + ` ;;
esac
`
	require.NoError(t, os.WriteFile(filepath.Join(folder, "docker"), []byte(script), 0o755))
	t.Setenv("PATH", folder+":/usr/bin:/bin")
	return log
}

func TestContainerIsStartedAndRemoved(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = connection.Write([]byte("\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x0a"))
		}
	}()
	management := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer management.Close()
	log := fakeDocker(t, listener.Addr().String(), management.Listener.Addr().String())
	t.Setenv("DEVBROKER_IMAGE", "rabbitmq:test")

	if whyNot := dockerAnswers(t.Context()); whyNot != "" {
		t.Fatal(whyNot)
	}
	b, err := startContainer(t.Context())
	require.NoError(t, err)
	want := map[string]string{
		"AMQP_URL": "amqp://guest:guest@" + listener.Addr().String() + "/", "AMQP_MANAGEMENT_URL": management.URL,
		"AMQP_PROMETHEUS_URL": "http://127.0.0.1:15692", "AMQP_TLS_ADDRESS": "127.0.0.1:5671",
		"BROKER_CTL": "docker exec " + b.Container + " rabbitmqctl -q",
	}
	if !maps.Equal(b.Variables, want) {
		t.Errorf("got %v, want %v", b.Variables, want)
	}
	b.stop()
	calls, err := os.ReadFile(log)
	require.NoError(t, err)
	for _, want := range []string{
		"run --detach --name " + b.Container + " --publish 127.0.0.1::5672 --publish 127.0.0.1::15672 --publish " +
			"127.0.0.1::15692 --publish 127.0.0.1::5671 rabbitmq:test\n",
		"rm --force --volumes " + b.Container + "\n",
	} {
		if !strings.Contains(string(calls), want) {
			t.Errorf("docker was not called with %q, only with\n%s", want, calls)
		}
	}
}

func TestDockerWithoutADaemonIsNotOpen(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "docker"), []byte("#!/bin/sh\nexit 1\n"), 0o755))
	t.Setenv("PATH", folder+":/usr/bin:/bin")
	if dockerAnswers(t.Context()) == "" {
		t.Error("a client without a daemon is accepted as Docker")
	}
}

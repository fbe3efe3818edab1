//go:build unix

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/tieredretry/watermill-retry/tools/prometheus"
)

// read reads YAML.
func read(t *testing.T, path string, to any) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, to), path)
}

var (
	hostOf  = regexp.MustCompile(`//(?:[^@/]*@)?([a-z]+):`)
	address = regexp.MustCompile(`"([a-z]+):[0-9]+"`)
)

// TestCompose checks what can be checked without starting a container: files, names and ports.
func TestCompose(t *testing.T) {
	t.Parallel()
	var file struct {
		Services map[string]struct {
			Build          struct{ Context, Dockerfile string }
			Ports, Volumes []string
			Environment    map[string]string
			DependsOn      map[string]any `yaml:"depends_on"`
			Healthcheck    map[string]any
		}
	}
	read(t, "compose.yaml", &file)
	require.Len(t, file.Services, 5)
	var mounted []string
	for name, s := range file.Services {
		if s.Build.Context != "" {
			assert.FileExists(t, filepath.Join(s.Build.Context, s.Build.Dockerfile), name)
		}
		for _, p := range s.Ports {
			assert.True(t, strings.HasPrefix(p, "127.0.0.1:"), "%s: %s is open for other hosts", name, p)
		}
		for _, v := range s.Volumes {
			source, _, _ := strings.Cut(v, ":")
			_, err := os.Stat(source)
			assert.NoError(t, err, "%s mounts what is not there", name)
			mounted = append(mounted, source)
		}
		for on := range s.DependsOn {
			assert.NotEmpty(t, file.Services[on].Healthcheck, "%s waits for the health of %s, which has no check", name, on)
		}
		for key, value := range s.Environment {
			for _, host := range hostOf.FindAllStringSubmatch(value, -1) {
				assert.Contains(t, file.Services, host[1], "%s of %s", key, name)
			}
		}
	}
	assert.Contains(t, mounted, "../../observability/dashboards")
	scraped, err := os.ReadFile("prometheus/prometheus.yml")
	require.NoError(t, err)
	for _, target := range address.FindAllStringSubmatch(string(scraped), -1) {
		assert.Contains(t, file.Services, target[1], "a target of Prometheus")
	}
}

// TestComposePrometheus lets promtool check the configuration, with the alert rules where compose.yaml mounts them.
func TestComposePrometheus(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for from, to := range map[string]string{"prometheus/prometheus.yml": "prometheus.yml",
		"../../observability/alerts": "alerts"} {
		path, err := filepath.Abs(from)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(folder, to)))
	}
	output, err := prometheus.Promtool(t.Context(), "check", "config", filepath.Join(folder, "prometheus.yml"))
	require.NoError(t, err)
	assert.Contains(t, output, "1 rule files found")
}

// TestGrafanaProvisioning: each exemplar leads to a data source that is there.
func TestGrafanaProvisioning(t *testing.T) {
	t.Parallel()
	var sources struct {
		Datasources []struct {
			UID      string
			JSONData struct {
				Exemplars []struct {
					DatasourceUID string `yaml:"datasourceUid"`
				} `yaml:"exemplarTraceIdDestinations"`
			} `yaml:"jsonData"`
		}
	}
	read(t, "grafana/provisioning/datasources/datasources.yaml", &sources)
	var uids, led []string
	for _, s := range sources.Datasources {
		uids = append(uids, s.UID)
		for _, e := range s.JSONData.Exemplars {
			led = append(led, e.DatasourceUID)
		}
	}
	assert.Equal(t, []string{"prometheus", "jaeger"}, uids)
	assert.Equal(t, []string{"jaeger"}, led)
}

//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/tieredretry/watermill-retry/tools/prometheus"
)

// compose has the keys of a compose file that compose.yaml uses. Any other key is an error.
type compose struct {
	Name     string             `yaml:"name"`
	Services map[string]service `yaml:"services"`
}

type service struct {
	Image    string `yaml:"image"`
	Hostname string `yaml:"hostname"`
	Build    *struct {
		Context    string `yaml:"context"`
		Dockerfile string `yaml:"dockerfile"`
	} `yaml:"build"`
	Restart     string            `yaml:"restart"`
	Command     []string          `yaml:"command"`
	Environment map[string]string `yaml:"environment"`
	Ports       []string          `yaml:"ports"`
	Volumes     []string          `yaml:"volumes"`
	DependsOn   map[string]struct {
		Condition string `yaml:"condition"`
	} `yaml:"depends_on"`
	Healthcheck *struct {
		Test     []string `yaml:"test"`
		Interval string   `yaml:"interval"`
		Timeout  string   `yaml:"timeout"`
		Retries  int      `yaml:"retries"`
	} `yaml:"healthcheck"`
}

// strict reads YAML whose keys are all known.
func strict(t *testing.T, path string, to any) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	decoder := yaml.NewDecoder(file)
	decoder.KnownFields(true)
	require.NoError(t, decoder.Decode(to), path)
}

var (
	pinned  = regexp.MustCompile(`^[a-z0-9./-]+:v?[0-9]+\.[0-9]+[a-z0-9.-]*$`)
	hostOf  = regexp.MustCompile(`//(?:[^@/]*@)?([a-z]+):`)
	address = regexp.MustCompile(`"([a-z]+):[0-9]+"`)
)

// TestCompose checks what can be checked without starting a container: the syntax, the files, the names and the ports.
func TestCompose(t *testing.T) {
	t.Parallel()
	var file compose
	strict(t, "compose.yaml", &file)
	require.Len(t, file.Services, 5)
	ports := map[string]string{}
	for name, s := range file.Services {
		if s.Build != nil {
			assert.FileExists(t, filepath.Join(s.Build.Context, s.Build.Dockerfile), name)
			assert.FileExists(t, filepath.Join(s.Build.Context, "go.mod"), name)
			assert.Empty(t, s.Image, name)
		} else {
			assert.Regexp(t, pinned, s.Image, name)
		}
		for _, p := range s.Ports {
			parts := strings.Split(p, ":")
			require.Len(t, parts, 3, p)
			assert.True(t, net.ParseIP(parts[0]).IsLoopback(), "%s: %s is open for other hosts", name, p)
			assert.Empty(t, ports[parts[1]], "the port %s is that of %s and %s", parts[1], name, ports[parts[1]])
			ports[parts[1]] = name
		}
		for _, v := range s.Volumes {
			parts := strings.Split(v, ":")
			require.Len(t, parts, 3, v)
			_, err := os.Stat(parts[0])
			assert.NoError(t, err, "%s mounts what is not there", name)
			assert.True(t, strings.HasPrefix(parts[1], "/"), v)
			assert.Equal(t, "ro", parts[2], v)
		}
		for on, d := range s.DependsOn {
			require.Contains(t, file.Services, on, name)
			assert.Equal(t, "service_healthy", d.Condition)
			assert.NotNil(t, file.Services[on].Healthcheck, "%s waits for the health of %s, which has no check", name,
				on)
		}
		for key, value := range s.Environment {
			for _, host := range hostOf.FindAllStringSubmatch(value, -1) {
				assert.Contains(t, file.Services, host[1], "%s of %s", key, name)
			}
		}
	}
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

// TestGrafanaProvisioning: each exemplar leads to a data source that is there, and each board is in the folder that
// is mounted.
func TestGrafanaProvisioning(t *testing.T) {
	t.Parallel()
	var sources struct {
		APIVersion  int `yaml:"apiVersion"`
		Datasources []struct {
			Name      string `yaml:"name"`
			UID       string `yaml:"uid"`
			Type      string `yaml:"type"`
			URL       string `yaml:"url"`
			IsDefault bool   `yaml:"isDefault"`
			JSONData  struct {
				TimeInterval string `yaml:"timeInterval"`
				Exemplars    []struct {
					Name          string `yaml:"name"`
					DatasourceUID string `yaml:"datasourceUid"`
				} `yaml:"exemplarTraceIdDestinations"`
			} `yaml:"jsonData"`
		} `yaml:"datasources"`
	}
	strict(t, "grafana/provisioning/datasources/datasources.yaml", &sources)
	var file compose
	strict(t, "compose.yaml", &file)
	var uids []string
	for _, s := range sources.Datasources {
		uids = append(uids, s.UID)
		assert.Contains(t, file.Services["grafana"].Environment, strings.TrimPrefix(s.URL, "$"))
	}
	assert.Equal(t, []string{"prometheus", "jaeger"}, uids)
	for _, s := range sources.Datasources {
		for _, e := range s.JSONData.Exemplars {
			assert.Equal(t, "trace_id", e.Name)
			assert.True(t, slices.Contains(uids, e.DatasourceUID), e.DatasourceUID)
		}
	}

	var boards struct {
		APIVersion int `yaml:"apiVersion"`
		Providers  []struct {
			Name    string            `yaml:"name"`
			Type    string            `yaml:"type"`
			Options map[string]string `yaml:"options"`
		} `yaml:"providers"`
	}
	strict(t, "grafana/provisioning/dashboards/dashboards.yaml", &boards)
	require.Len(t, boards.Providers, 1)
	mounted := fmt.Sprintf("../../observability/dashboards:%s:ro", boards.Providers[0].Options["path"])
	assert.Contains(t, file.Services["grafana"].Volumes, mounted)
	found, err := filepath.Glob("../../observability/dashboards/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, found)
	for _, path := range found {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.True(t, json.Valid(text), path)
	}
}

package command

import (
	"bufio"
	"html"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
)

// page looks at the page, with the same server twice under two names: what each shows, and the causes of both.
func (o *operator) page(_, _ []string) {
	other := strings.ReplaceAll(o.url, "127.0.0.1", "localhost")
	require.NotEqual(o.t, o.url, other)
	command := exec.Command(binary, "ui", "--listen", "127.0.0.1:0", "--allow-write", "--prefix", o.app.Prefix)
	command.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "AMQP_URL=") })
	command.Env = append(command.Env, "WMRETRY_URL="+o.url+" "+other)
	stdout, err := command.StdoutPipe()
	require.NoError(o.t, err)
	var stderr strings.Builder
	command.Stderr = &stderr
	require.NoError(o.t, command.Start())
	lines := bufio.NewReader(stdout)
	line, _ := lines.ReadString('\n')
	defer func() {
		assert.NoError(o.t, command.Process.Signal(os.Interrupt))
		_, _ = io.Copy(io.Discard, lines)
		assert.NoError(o.t, command.Wait(), stderr.String())
	}()
	address := regexp.MustCompile(`http://\S+/`).FindString(line)
	require.NotEmpty(o.t, address, line+stderr.String())
	ask := func(method, path string, code int) string {
		o.t.Helper()
		request, err := http.NewRequestWithContext(o.t.Context(), method, address+path, nil)
		require.NoError(o.t, err)
		request.Header.Set("Sec-Fetch-Site", "same-origin")
		answer, err := http.DefaultClient.Do(request)
		require.NoError(o.t, err)
		defer func() { _ = answer.Body.Close() }()
		body, err := io.ReadAll(answer.Body)
		require.NoError(o.t, err)
		require.Equal(o.t, code, answer.StatusCode, "%s\n%s", path, body)
		return html.UnescapeString(string(body))
	}
	ids := regexp.MustCompile(`"cause":"([0-9a-f]{8})"`).FindAllStringSubmatch(o.letters(0, "list", "--group", "--json").stdout, -1)
	require.Len(o.t, ids, 2)

	stores := regexp.MustCompile(`href="(@[^"]+/)"`).FindAllStringSubmatch(ask(http.MethodGet, "", http.StatusOK), -1)
	require.Len(o.t, stores, 2)
	for _, store := range stores {
		assert.Contains(o.t, ask(http.MethodGet, store[1], http.StatusOK), `href="causes?queue=`+o.dead+`"`)
		causes := ask(http.MethodGet, store[1]+"causes?queue="+o.dead, http.StatusOK)
		for _, want := range []string{"All 30 letters", "no stock of item <n>", "the service is down", ids[0][1], ids[1][1]} {
			assert.Contains(o.t, causes, want)
		}
		code := http.StatusOK
		if o.entry.Expect.Letters == registry.BrowseLetters {
			code = http.StatusForbidden
		}
		confirm := ask(http.MethodPost, store[1]+"redrive?queue="+o.dead+"&cause="+ids[0][1], code)
		assert.Equal(o.t, code == http.StatusOK, strings.Contains(confirm, "Redrive 15 letters"))
	}
	look := "causes"
	if o.entry.Expect.Tiers {
		look = "" // two looks at the same time take RabbitMQ's letters from each other: those before are shown
	}
	both := ask(http.MethodGet, look, http.StatusOK)
	for _, want := range []string{"no stock of item <n>", "30 letters", "15 in "} {
		assert.Contains(o.t, both, want)
	}
}

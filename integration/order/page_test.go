package order_test

import (
	"bufio"
	"context"
	"encoding/json"
	"html"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

// page starts wmretry ui, and returns its address.
func (o *operator) page() string {
	o.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	c := exec.CommandContext(ctx, o.program, "ui", "--listen", "127.0.0.1:0", "--prefix", o.config.Prefix, o.queue)
	c.Env = append(c.Environ(), "AMQP_URL="+o.url)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	stdout, err := c.StdoutPipe()
	require.NoError(o.t, err)
	require.NoError(o.t, c.Start())
	o.t.Cleanup(func() { stop(); _ = c.Wait() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(o.t, err)
	address := regexp.MustCompile(`http://\S+`).FindString(line)
	require.NotEmpty(o.t, address, line)
	return address
}

func (o *operator) open(address string) string {
	o.t.Helper()
	request, err := http.NewRequestWithContext(o.t.Context(), http.MethodGet, address, http.NoBody)
	require.NoError(o.t, err)
	request.Header.Set("Sec-Fetch-Site", "same-origin") // as a browser after a click on the page
	answer, err := http.DefaultClient.Do(request)
	require.NoError(o.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(o.t, err)
	require.Equal(o.t, http.StatusOK, answer.StatusCode, "%s", text)
	return string(text)
}

// TestThePageShowsBlockedKeys also runs a command of the page, as it stands there.
func TestThePageShowsBlockedKeys(t *testing.T) {
	t.Parallel()
	const key = "it's <b>7</b> $(id)"
	o := newOperator(t)
	a := o.startBlocking()
	var all []*message.Message
	for n := range 3 {
		payload, err := json.Marshal(body{Key: "customer-1", Number: n})
		require.NoError(t, err)
		msg := message.NewMessage(watermill.NewUUID(), payload)
		msg.Metadata.Set("customer", key)
		all = append(all, msg)
	}
	o.publish(a, all)
	testapp.Eventually(t, func() bool { return len(a.Events(retry.Blocked)) == 1 }, "the second message is blocked")

	address := o.page()
	view := address + "order?queue=" + url.QueryEscape(o.queue)
	testapp.Eventually(t, func() bool {
		board := o.open(address)
		return strings.Contains(board, `href="order?queue=`+o.queue+`"`) && strings.Contains(board, "of 4 partitions") &&
			strings.Contains(board, "<dt>Handled</dt><dd>2</dd>")
	}, "the board counts the blocked message with the one behind it, and leads to the blocked keys")
	var text string
	for range 2 { // the first look changes nothing
		testapp.Eventually(t, func() bool { text = o.open(view); return strings.Contains(text, html.EscapeString(key)) }, "the key is shown")
		assert.Contains(t, text, "1 process has answered.")
		assert.Contains(t, text, all[1].UUID)
		assert.Contains(t, text, errDown.Error())
		assert.Contains(t, text, o.queue+".order.")
		assert.NotContains(t, text, "<b>")
	}
	assert.Len(t, a.Events(retry.Blocked), 1)
	assert.Equal(t, 1, o.sink.count())

	_, command, found := strings.Cut(text, "\nwmretry order skip ")
	require.True(t, found, text)
	command, _, _ = strings.Cut(command, "</pre>")
	o.sink.skip("customer-1", 1)
	shell := exec.Command("sh", "-c", "wmretry order skip "+html.UnescapeString(command))
	shell.Env = append(shell.Environ(), "AMQP_URL="+o.url, "PATH="+filepath.Dir(o.program)+":"+os.Getenv("PATH"))
	output, err := shell.CombinedOutput()
	require.NoError(t, err, "%s", output)
	testapp.Take(t, o.queue+".dead", 1)
	testapp.Eventually(t, func() bool { return o.sink.count() == 2 }, "the one behind it follows")
	o.sink.inOrder(t)
	assert.Contains(t, o.open(view), "The processes that have answered have no blocked key.")

	a.stop()
	assert.Contains(t, o.open(view), "No process with a handler that has Order.Partitions has answered.")
}

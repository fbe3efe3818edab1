package page_test

import (
	"archive/zip"
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter/page"
)

var download = regexp.MustCompile(`href="(test\?[^"]+)"`)

// TestDownloadAsATest: the files are those of letters.GoTest, redacted, whatever the letter has.
func TestDownloadAsATest(t *testing.T) {
	t.Parallel()
	const hostile = "\x1b[2J`\"\n/../<script>"
	for _, letter := range []*letters.Letter{
		letter("order-1", "no customer ada"), letter("id"+hostile, hostile), letter("no JSON", "ada"), letter("any name", "ada"),
	} {
		letter.Payload = []byte(`{"order":"ada"}`)
		switch letter.ID {
		case "no JSON":
			letter.Payload = []byte("ada")
		case "any name":
			letter.Record.Handler = "\x00" + strings.Repeat("💥", 100)
		}
		s := setup(t, func(yield func(*letters.Letter) bool) { yield(letter) }, func(c *page.Config) {
			c.AllowWrite, c.Redact = false, []string{"customer", "order", "Card"}
		})
		shown := body(t, s.get("letter?"+url.Values{"queue": {queue}, "id": {letter.ID}}.Encode()), http.StatusOK)
		link := download.FindStringSubmatch(shown)
		require.NotNil(t, link)
		if letter.ID != "no JSON" {
			assert.Contains(t, shown, "no field, metadata or property <bdi class=\"mono\">Card</bdi>")
			assert.Contains(t, shown, "not have the values of <bdi class=\"mono\">customer, order</bdi>")
		}
		answer := s.get(html.UnescapeString(link[1]))
		if letter.ID == "no JSON" {
			assert.Contains(t, body(t, answer, http.StatusUnprocessableEntity), "leave the payload out")
			continue
		}
		packed := body(t, answer, http.StatusOK)
		assert.Equal(t, "application/zip", answer.Header().Get("Content-Type"))
		assert.Regexp(t, `^attachment; filename="Test[A-Za-z0-9_]+\.zip"$`, answer.Header().Get("Content-Disposition"))
		files, err := zip.NewReader(strings.NewReader(packed), int64(len(packed)))
		require.NoError(t, err)
		require.Len(t, files.File, 2)
		for _, file := range files.File {
			assert.Regexp(t, `^(testdata/[A-Za-z0-9-]+\.json|[A-Za-z0-9_-]+_test\.go)$`, file.Name)
			reader, err := file.Open()
			require.NoError(t, err)
			content, err := io.ReadAll(reader)
			require.NoError(t, err)
			assert.NotContains(t, string(content), "ada")
		}
	}
	s := setup(t, some(), nil)
	assert.Equal(t, http.StatusNotFound, s.get("test?queue=orders.dead&id=absent").Code)
	assert.Equal(t, http.StatusNotFound, s.get("test?queue=other&id=order-1").Code, "a queue that the page does not show")
	assert.Equal(t, http.StatusBadRequest, s.get("test?queue=orders.dead").Code)
	assert.Equal(t, http.StatusMethodNotAllowed, s.post("test?queue=orders.dead&id=order-1", nil).Code)
}

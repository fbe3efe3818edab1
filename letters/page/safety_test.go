package page_test

import (
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
	"github.com/tieredretry/watermill-retry/letters/page"
)

var changes = []string{"redrive", "discard", "stop"}

func TestReadOnly(t *testing.T) {
	s := setup(t, some(), func(c *page.Config) { c.AllowWrite = false })
	for _, change := range changes {
		assert.Equal(t, http.StatusForbidden, s.post(change+"?queue=orders.dead&all=1", url.Values{"step": {"start"}}).Code, change)
		assert.Equal(t, http.StatusForbidden, s.get(change+"?queue=orders.dead&all=1").Code, change)
	}
	for _, view := range []string{"", "causes?queue=orders.dead", "letters?queue=orders.dead", "letter?queue=orders.dead&id=order-1"} {
		text := body(t, s.get(view), http.StatusOK)
		for _, never := range []string{`method="post"`, "redrive?", "discard?"} {
			assert.NotContains(t, text, never, view)
		}
		assert.Contains(t, text, "Read-only")
	}
	assert.Empty(t, s.store.redrives)
	assert.Empty(t, s.store.discards)
	assert.Zero(t, s.store.dry)
}

// TestForeignPagesAreRefused: a form on another site must not change anything, also from a browser that sends no Sec-Fetch-Site.
func TestForeignPagesAreRefused(t *testing.T) {
	s := setup(t, some(), nil)
	for name, change := range map[string]func(http.Header){
		"cross-site":     func(h http.Header) { h.Set("Sec-Fetch-Site", "cross-site") },
		"same-site":      func(h http.Header) { h.Set("Sec-Fetch-Site", "same-site") },
		"origin":         func(h http.Header) { h.Del("Sec-Fetch-Site"); h.Set("Origin", "https://evil.example") },
		"unknown origin": func(h http.Header) { h.Del("Sec-Fetch-Site"); h.Set("Origin", "null") },
	} {
		for _, address := range changes {
			r := form(address+"?queue=orders.dead&all=1", url.Values{"step": {"check"}})
			change(r.Header)
			assert.Equal(t, http.StatusForbidden, s.do(r).Code, "%s: %s", name, address)
		}
	}
	assert.Zero(t, s.store.dry)
	assert.Equal(t, http.StatusOK, s.post("redrive?queue=orders.dead&all=1", url.Values{"step": {"check"}}).Code, "its own page")
}

// TestAForeignPageCausesNoLook: an image of a foreign page sends GET. It must not take letters, ask the processes, end a
// redrive by taking its letters, or push a confirmation out.
func TestAForeignPageCausesNoLook(t *testing.T) {
	s, asked := setupOrder(t, "sales", command.Asked{}, nil)
	own := s.confirmed(s.post("redrive?queue=orders.dead&all=1", nil))
	dry := s.store.dry
	looks := []string{"causes?queue=orders.dead", "letters?queue=orders.dead&all=1", "letter?queue=orders.dead&id=order-1",
		"test?queue=orders.dead&id=order-1", "order?queue=sales", "keys"}
	counts := []string{"redrive?queue=orders.dead&all=1", "discard?queue=orders.dead&all=1"}
	for name, headers := range map[string][]string{
		"cross-site":        {"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"},
		"same-site":         {"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"},
		"a link":            {"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"},
		"old browser":       {"Referer", "https://evil.example/"},
		"without a Referer": nil,
		"a foreign origin":  {"Origin", "https://evil.example"},
		"another port":      {"Referer", "http://example.com:8081/admin/"},
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			for _, address := range append(looks, counts...) {
				r := request(address, headers...)
				r.Method = method
				assert.Equal(t, http.StatusForbidden, s.do(r).Code, "%s: %s %s", name, method, address)
			}
		}
		for range 101 { // more than the confirmations that are kept
			s.do(request(counts[0], headers...))
		}
	}
	for _, address := range counts {
		assert.Equal(t, http.StatusMethodNotAllowed, s.get(address).Code, "no GET of its own either: %s", address)
	}
	assert.Zero(t, s.store.browses, "the letters")
	assert.Equal(t, dry, s.store.dry, "the counts")
	assert.Empty(t, *asked, "the processes")
	assert.Equal(t, http.StatusSeeOther, s.post("redrive", url.Values{"step": {"start"}, "run": {own}}).Code, "the confirmation is there")
	assert.Equal(t, http.StatusForbidden, s.do(request("", "Sec-Fetch-Site", "cross-site")).Code, "the board neither")
}

// TestTheOperatorsLinksOpen: an address that was typed or bookmarked, links of the page in browsers that send only a Referer, and
// one click more where another site has the link.
func TestTheOperatorsLinksOpen(t *testing.T) {
	s := setup(t, some(), nil)
	const view = "letters?queue=orders.dead&cause=8801ed07&dead_reason=exhausted"
	for name, headers := range map[string][]string{
		"typed": {"Sec-Fetch-Site", "none"}, "clicked": {"Sec-Fetch-Site", "same-origin"}, "clicked in an old browser": {"Referer", "http://example.com/admin/"},
	} {
		body(t, s.do(request(view, headers...)), http.StatusOK)
		assert.Equal(t, http.StatusOK, s.do(request("style.css", headers...)).Code, name)
	}
	for _, address := range []string{"", "?part=1", "style.css", "job?id=1"} { // they take no letter
		assert.NotEqual(t, http.StatusForbidden, s.do(request(address)).Code, "%q, typed in an old browser", address)
	}
	for _, address := range []string{view, "", "letter?queue=orders.dead&id=%22%3E%3Cscript%3E", "causes?queue=orders.dead&\"><script>alert(1)</script>"} {
		r := request("", "Sec-Fetch-Site", "cross-site")
		name, query, _ := strings.Cut(address, "?")
		r.URL.Path, r.URL.RawQuery = "/admin/"+name, query
		text := body(t, s.do(r), http.StatusForbidden)
		assert.NotContains(t, text, "<script>")
		link := regexp.MustCompile(`href="([^"]*)">Open the view`).FindStringSubmatch(text)
		require.NotNil(t, link, text)
		target, err := r.URL.Parse(html.UnescapeString(link[1]))
		require.NoError(t, err)
		assert.Equal(t, r.URL.Path, target.Path)
		assert.Equal(t, r.URL.Query(), target.Query())
	}
	change := request("redrive?queue=orders.dead&all=1", "Sec-Fetch-Site", "cross-site")
	assert.NotContains(t, body(t, s.do(change), http.StatusForbidden), "Open the view")
}

// TestForeignHostsAreRefused: a page whose name leads to an address of this host must not read this one.
func TestForeignHostsAreRefused(t *testing.T) {
	s := setup(t, some(), func(c *page.Config) { c.Hosts = page.LoopbackHosts() })
	for host, want := range map[string]int{
		"localhost": 200, "localhost:8080": 200, "LOCALHOST:1": 200, "127.0.0.1:8080": 200, "[::1]:8080": 200, "[::1]": 200, "10.0.0.1": 200,
		"evil.example": 403, "evil.example:8080": 403, "127.0.0.1.evil.example": 403, "localhost.evil.example:8080": 403, "": 403, "10.0.0.1.evil.example": 403,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		assert.Equal(t, want, s.do(r).Code, host)
	}
}

func TestHeadersOfEveryAnswer(t *testing.T) {
	s := setup(t, some(), func(c *page.Config) { c.Hosts = []string{"example.com"} })
	foreign := form("redrive", nil)
	foreign.Header.Set("Sec-Fetch-Site", "cross-site")
	other := httptest.NewRequest(http.MethodGet, "/", nil)
	other.Host = "evil.example"
	answers := map[string]*httptest.ResponseRecorder{"foreign": s.do(foreign), "host": s.do(other), "check": s.post("redrive?queue=orders.dead&all=1", url.Values{"step": {"check"}})}
	for _, address := range []string{"", "?part=1", "causes?queue=orders.dead", "letters?queue=orders.dead", "letter?queue=orders.dead&id=order-1", "redrive?queue=orders.dead&all=1", "style.css", "script.js", "icon.svg", "nothing", "job?id=1"} {
		answers[address] = s.get(address)
	}
	types := map[string]string{"style.css": "text/css; charset=utf-8", "script.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml; charset=utf-8"}
	for address, answer := range answers {
		header := answer.Header()
		assert.Equal(t, "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "+
			"frame-ancestors 'none'; base-uri 'none'", header.Get("Content-Security-Policy"), address)
		assert.Equal(t, "DENY", header.Get("X-Frame-Options"), address)
		assert.Empty(t, header.Values("Set-Cookie"), "%s: there is no session", address)
		assert.Empty(t, header.Values("Access-Control-Allow-Origin"), address)
		assert.Equal(t, "nosniff", header.Get("X-Content-Type-Options"), address)
		assert.Equal(t, "same-origin", header.Get("Referrer-Policy"), address)
		assert.Equal(t, "no-store", header.Get("Cache-Control"), address)
		if want := types[address]; want != "" {
			assert.Equal(t, want, header.Get("Content-Type"))
		}
		text := strings.ToLower(answer.Body.String())
		if strings.Contains(header.Get("Content-Type"), "html") {
			for _, never := range []string{"<style", " style=", " onclick", " onload", "javascript:", "http://", "https://"} {
				assert.NotContains(t, text, never, address)
			}
			assert.Equal(t, strings.Count(text, "<script"), strings.Count(text, "<script src="), address)
		}
	}
}

// TestLargeFormsAreRefused: a request cannot fill the memory.
func TestLargeFormsAreRefused(t *testing.T) {
	s := setup(t, some(), nil)
	large := s.post("redrive?queue=orders.dead", url.Values{"note": {strings.Repeat("x", 1<<20)}})
	assert.Contains(t, body(t, large, http.StatusBadRequest), "The form cannot be read.")
	many := url.Values{}
	for range 51 {
		many.Add("pick", "x")
	}
	assert.Equal(t, http.StatusBadRequest, s.post("redrive?queue=orders.dead", many).Code)
	assert.Equal(t, http.StatusBadRequest, s.get("letter?queue=orders.dead&id="+strings.Repeat("x", 1<<16)).Code)
}

package page_test

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/page"
)

func TestBoardShowsDepths(t *testing.T) {
	s := setup(t, some(), nil)
	for _, address := range []string{"", "?part=1"} {
		text := body(t, s.get(address), http.StatusOK)
		for _, want := range []string{"1,234", "10s", "due within 10s", `href="causes?queue=orders.dead"`, `href="causes?queue=retry.orphans"`, `href="causes?queue=poison"`} {
			assert.Contains(t, text, want)
		}
		assert.Equal(t, address == "", strings.Contains(text, "<html"), "a part is no whole page")
	}
	assert.Zero(t, s.store.browses, "the board takes no letters")
}

// TestEmptyTiersTakeOneLine: what has messages, is overdue, or is retired stays a row.
func TestEmptyTiersTakeOneLine(t *testing.T) {
	s := setup(t, some(), func(c *page.Config) {
		c.Status = func(context.Context) (letters.Status, error) {
			now := status()
			tier := func(delay time.Duration, messages, overdue int, retired bool) letters.Tier {
				return letters.Tier{Depth: letters.Depth{Queue: delay.String(), Messages: messages}, Delay: delay, Overdue: overdue, Retired: retired}
			}
			now.Queues[0].Tiers = []letters.Tier{
				tier(time.Second, 0, 0, false), tier(5*time.Second, 3, 0, false), tier(25*time.Second, 0, 40, false), tier(time.Minute, 0, 0, true),
				tier(time.Hour, 0, 0, false),
			}
			return now, nil
		}
	})
	text := body(t, s.get("?part=1"), http.StatusOK)
	assert.Contains(t, text, "2 empty tiers: 1s, 1h")
	assert.Equal(t, 4, strings.Count(text, `<th scope="row">`)+strings.Count(text, `empty tiers`))
}

// TestABarHasNoLengthBelowZero: where no tier has messages, the fullest one has none.
func TestABarHasNoLengthBelowZero(t *testing.T) {
	for want, tiers := range map[string][]int{"0 0": {0, 0}, "1 0 100": {1, 0, 1000}} {
		var widths []string
		s := setup(t, some(), func(c *page.Config) {
			c.Status = func(context.Context) (letters.Status, error) {
				now := status()
				now.Queues[0].Tiers = nil
				for i, messages := range tiers {
					now.Queues[0].Tiers = append(now.Queues[0].Tiers, letters.Tier{
						Depth: letters.Depth{Queue: fmt.Sprint(i), Messages: messages}, Delay: time.Hour, Retired: true})
				}
				return now, nil
			}
		})
		text := body(t, s.get("?part=1"), http.StatusOK)
		for _, found := range regexp.MustCompile(`class="part" width="(.*?)"`).FindAllStringSubmatch(text, -1) {
			widths = append(widths, found[1])
		}
		assert.Equal(t, want, strings.Join(widths, " "))
	}
}

// TestPollsShareAStatus: the broker gets one question a second, whatever the number of browsers.
func TestPollsShareAStatus(t *testing.T) {
	asked := 0
	s := setup(t, some(), func(c *page.Config) {
		c.Status = func(context.Context) (letters.Status, error) { asked++; return status(), nil }
	})
	began := time.Now()
	for range 50 {
		s.get("?part=1")
	}
	assert.LessOrEqual(t, asked, 1+int(time.Since(began)/time.Second))
}

func TestBoardShowsWhyDepthsAreOld(t *testing.T) {
	s := setup(t, some(), func(c *page.Config) {
		c.Status = func(context.Context) (letters.Status, error) {
			return letters.Status{}, errors.New("the broker is away")
		}
	})
	assert.Contains(t, body(t, s.get(""), http.StatusOK), "the broker is away")
	assert.Contains(t, body(t, s.get("causes?queue=orders.dead"), http.StatusBadGateway), "the broker is away")
}

func TestCausesAreGroups(t *testing.T) {
	s := setup(t, some(), nil)
	text := body(t, s.get("causes?queue=orders.dead"), http.StatusOK)
	assert.Contains(t, text, "All 7 letters of the queue were looked at.")
	assert.Contains(t, text, "card &lt;n&gt; was declined")
	assert.Contains(t, text, "dial tcp: connection refused")
	link := regexp.MustCompile(`href="(letters\?[^"]*cause=8801ed07[^"]*)"`).FindStringSubmatch(text)
	require.NotNil(t, link)
	list := body(t, s.get(html.UnescapeString(link[1])), http.StatusOK)
	assert.Contains(t, list, "Letters 1 to 5 of 5,")
	assert.Contains(t, list, "order-4")
	assert.NotContains(t, list, "order-5")
}

// TestKeysBeyondTheLargestAreLast, also where they are most letters.
func TestKeysBeyondTheLargestAreLast(t *testing.T) {
	s := setup(t, func(yield func(*letters.Letter) bool) {
		for i := range 25 {
			l := letter(fmt.Sprintf("order-%d", i), "the endpoint is down")
			if l.Record.Key = fmt.Sprintf("tenant %d", i); !yield(l) {
				return
			}
		}
	}, nil)
	assert.Contains(t, body(t, s.get("causes?queue=orders.dead"), http.StatusOK), " · 5 of others</p>")
}

// TestCausesShowTheirKeys: one tenant has most of a cause's letters, and its own are a click away.
func TestCausesShowTheirKeys(t *testing.T) {
	s := setup(t, func(yield func(*letters.Letter) bool) {
		for i := range 40 {
			l := letter(fmt.Sprintf("order-%d", i), "the endpoint is down")
			if l.Record.Key = "acme"; i%20 == 7 {
				l.Record.Key = fmt.Sprintf("tenant %d", i)
			}
			if !yield(l) {
				return
			}
		}
		yield(letter("order-40", "the endpoint is down"))
	}, nil)
	text := body(t, s.get("causes?queue=orders.dead"), http.StatusOK)
	assert.Regexp(t, `Keys: 38 of <a href="[^"]*"><bdi class="mono">acme</bdi></a> · 1 of <a href="[^"]*"><bdi class="mono">tenant 27</bdi></a> · `, text)
	assert.NotContains(t, text, "of others")
	link := regexp.MustCompile(`href="(letters\?[^"]*key=tenant[^"]*27[^"]*)"`).FindStringSubmatch(text)
	require.NotNil(t, link)
	selected := strings.TrimPrefix(html.UnescapeString(link[1]), "letters?")
	list := body(t, s.get("letters?"+selected), http.StatusOK)
	assert.Contains(t, list, "Letters 1 to 1 of 1,")
	assert.Contains(t, list, "order-27")
	assert.Contains(t, list, `, key <bdi class="mono">tenant 27</bdi>`)
	assert.Contains(t, body(t, s.post("discard?"+selected, nil), http.StatusOK), `Discard <span id="count">1 letter</span>?`)
	assert.Contains(t, body(t, s.get("letter?queue=orders.dead&id=order-27"), http.StatusOK), "<dt>Key</dt>")
}

// TestLooksAreBounded: a view of a long queue looks at MaxLetters, and says so.
func TestLooksAreBounded(t *testing.T) {
	s := setup(t, many(100_000), func(c *page.Config) { c.MaxLetters = 500 })
	text := body(t, s.get("causes?queue=orders.dead"), http.StatusOK)
	assert.Contains(t, text, "The page looked at the first 500 letters. There are more")
	assert.Equal(t, 501, s.store.browsed)
	assert.Contains(t, body(t, s.get("letter?queue=orders.dead&id=order-99999"), http.StatusNotFound), "The first 500 letters")
	assert.Contains(t, body(t, s.get("letters?queue=orders.dead&page=10"), http.StatusOK), "Letters 451 to 500 of 500, the oldest first. The page looked at the first 500 letters of the queue. There are more.")
	assert.Equal(t, http.StatusBadRequest, s.get("letters?queue=orders.dead&page=12").Code)
	assert.Equal(t, http.StatusBadRequest, s.get("letters?queue=orders.dead&page=0").Code)
}

func TestListHasPages(t *testing.T) {
	s := setup(t, many(120), nil)
	first := body(t, s.get("letters?queue=orders.dead"), http.StatusOK)
	assert.Equal(t, 50, strings.Count(first, `name="pick"`))
	assert.Contains(t, first, `href="letters?queue=orders.dead&amp;page=2"`)
	assert.Contains(t, first, "Letters 1 to 50 of 120,")
	last := body(t, s.get("letters?queue=orders.dead&page=3"), http.StatusOK)
	assert.Equal(t, 20, strings.Count(last, `name="pick"`))
	assert.NotContains(t, last, "page=4")
}

// TestLooksEndInTime: what was seen is shown when the time is over.
func TestLooksEndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := setup(t, nil, func(c *page.Config) { c.Timeout = time.Millisecond })
		s.store.letters = func(yield func(*letters.Letter) bool) {
			for i := 0; yield(letter(fmt.Sprint(i), "slow")); i++ {
				time.Sleep(100 * time.Microsecond) // makes the queue endless, not a test of time
			}
		}
		assert.Contains(t, body(t, s.get("causes?queue=orders.dead"), http.StatusOK), "The time for looking was over")
	})
}

// TestOtherQueuesAreRefused: no request makes the page take the messages of a work queue.
func TestOtherQueuesAreRefused(t *testing.T) {
	s := setup(t, some(), nil)
	for _, name := range []string{"orders", "", "orders.retry.10s", "secrets"} {
		query := "?queue=" + url.QueryEscape(name) + "&id=order-1"
		for _, view := range []string{"causes", "letters", "letter", "redrive", "discard"} {
			assert.Equal(t, http.StatusNotFound, s.ask(view+query).Code, view+query)
		}
		for _, change := range []string{"redrive", "discard"} {
			assert.Equal(t, http.StatusNotFound, s.post(change+query, url.Values{"step": {"check"}}).Code, change+query)
		}
	}
	assert.Zero(t, s.store.browses)
	assert.Contains(t, body(t, s.get("causes?queue=poison"), http.StatusNotFound), "The queue does not exist")
}

func TestLetterHasATimeline(t *testing.T) {
	l := letter("order-1", "no route to host")
	l.Record.Snoozes, l.Record.Traceparent = 2, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	l.Redriven = letters.Redriven{Times: 3, Redrives: []letters.PastRedrive{{
		At: l.Record.FirstFailedAt.Add(-time.Hour), By: "ada@laptop", Note: "after the outage", Failures: 4, DeadReason: "expired", Reason: "host is down",
	}}}
	l.Headers = map[string]any{"attempt": int64(3), "at": l.DeadAt(), "raw": []byte{0, 255}, "nested": map[string]any{"a": []any{true}}, "none": nil}
	l.Properties = map[string]string{"priority": "7"}
	s := setup(t, func(yield func(*letters.Letter) bool) { yield(l) }, nil)
	text := body(t, s.get("letter?queue=orders.dead&id=order-1"), http.StatusOK)
	at := 0
	for _, want := range []string{
		"2 earlier redrives", "Given up (expired) after 4 failures", "host is down", "Redriven", "ada@laptop", "after the outage",
		"First failure", "1 h later", "3 more failures", "Snoozed 2 times", "Last failure", "3 min later", "no route to host", "Given up (exhausted)",
		"int64", ">3<", "table", "{&#34;a&#34;:[true]}", "void", "bytes", "00ff", "priority", "{\n  &#34;order&#34;: &#34;order-1&#34;\n}",
	} {
		found := strings.Index(text, want)
		if assert.GreaterOrEqual(t, found, 0, want) && !strings.Contains(want, "order") && at >= 0 {
			if want == "int64" { // the headers are sorted by name
				at = -1
				continue
			}
			assert.Greater(t, found, at, "%s is too early", want)
			at = found
		}
	}
	assert.Contains(t, text, `<span class="type">timestamp</span>`)
	assert.Contains(t, text, "<dt>Traceparent</dt><dd class=\"mono\"><bdi>"+l.Record.Traceparent+"</bdi></dd>")
}

func TestATimelineEndsWithWhoGaveUp(t *testing.T) {
	for kind, want := range map[letters.Kind]string{
		letters.Library: "Given up (exhausted)", letters.Broker: "Given up by the broker (exhausted)", letters.Poison: "Moved by Watermill’s PoisonQueue",
		letters.Orphan: "Became an orphan: its work queue was gone when its delay was over", letters.Unknown: "In this queue, without a failure record",
		"": "Given up", "of a later version": "Given up",
	} {
		l := letter("order-1", "no route to host")
		l.Kind = kind
		s := setup(t, func(yield func(*letters.Letter) bool) { yield(l) }, nil)
		assert.Contains(t, body(t, s.get("letter?queue=orders.dead&id=order-1"), http.StatusOK), `<p class="what">`+want+"</p>")
	}
}

// TestLongLettersAreCut: one letter cannot make a page of any size.
func TestLongLettersAreCut(t *testing.T) {
	l := letter("order-1", strings.Repeat("long ", 1<<20))
	l.Payload = []byte(strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000))
	for i := range 5_000 {
		l.Metadata[fmt.Sprint("header", i)] = strings.Repeat("x", 10_000)
	}
	s := setup(t, func(yield func(*letters.Letter) bool) { yield(l) }, nil)
	text := body(t, s.get("letter?queue=orders.dead&id=order-1"), http.StatusOK)
	assert.Less(t, len(text), 2<<20)
	assert.Contains(t, text, "4,801 further headers are not shown.")
	assert.Contains(t, text, "Body (text)", "as JSON it would have 80 MB")
}

func TestHostileLettersAreEscaped(t *testing.T) {
	const hostile = "\"'><script>alert(1)</script>\x00\x1b[31m\u202e</title></pre>{{.}}\xff"
	l := letter(hostile, hostile)
	l.Record.ErrorType, l.Record.Handler, l.Record.Topic, l.Record.DeadReason = hostile, hostile, hostile, hostile
	l.Record.Traceparent, l.Record.Key = hostile, hostile
	l.Target, l.Payload = hostile, []byte(hostile)
	l.Metadata = message.Metadata{hostile: hostile}
	l.Headers = map[string]any{hostile: map[string]any{hostile: hostile}}
	l.Properties = map[string]string{hostile: hostile}
	l.Redriven = letters.Redriven{Times: 1, Redrives: []letters.PastRedrive{{By: hostile, Note: hostile, Reason: hostile, DeadReason: hostile}}}
	s := setup(t, func(yield func(*letters.Letter) bool) { yield(l) }, func(c *page.Config) {
		c.Queues = []string{hostile}
	})
	id := url.QueryEscape(hostile)
	addresses := []string{"", "causes?queue=orders.dead", "letters?queue=orders.dead", "letter?queue=orders.dead&id=" + id,
		"redrive?queue=orders.dead&id=" + id, "discard?queue=orders.dead&id=" + id, "causes?queue=" + id}
	for _, address := range addresses {
		answer := s.ask(address)
		text := answer.Body.String()
		assert.Less(t, answer.Code, 500, address)
		assert.NotContains(t, text, "<script>", address)
		assert.NotContains(t, text, "\u202e", address)
		assert.NotContains(t, text, "\x1b", address)
		assert.NotContains(t, text, "'>", address)
		assert.Contains(t, text, "&lt;script&gt;", address)
	}
	// The letter is found by its own bytes, with those that are no UTF-8: from its link, and from the box of a list.
	link := regexp.MustCompile(`href="(letter\?[^"]*)"`).FindStringSubmatch(s.get("letters?queue=orders.dead").Body.String())
	require.NotNil(t, link)
	body(t, s.get(html.UnescapeString(link[1])), http.StatusOK)
	link = regexp.MustCompile(`href="(letters\?[^"]*key=[^"]*)"`).FindStringSubmatch(s.get("causes?queue=orders.dead").Body.String())
	require.NotNil(t, link)
	assert.Contains(t, body(t, s.get(html.UnescapeString(link[1])), http.StatusOK), "Letters 1 to 1 of 1,")
	pick := regexp.MustCompile(`name="pick" value="([^"]*)"`).FindStringSubmatch(s.get("letters?queue=orders.dead").Body.String())
	require.NotNil(t, pick)
	text := body(t, s.post("discard?queue=orders.dead", url.Values{"pick": {html.UnescapeString(pick[1])}}), http.StatusOK)
	assert.Contains(t, text, "Discard <span id=\"count\">1 letter</span>?")
}

// TestNotFoundAndMethods: what the page does not have.
func TestNotFoundAndMethods(t *testing.T) {
	s := setup(t, some(), nil)
	assert.Equal(t, http.StatusNotFound, s.get("page.go").Code)
	assert.Equal(t, http.StatusNotFound, s.get("templates/board.html").Code)
	for _, view := range []string{"", "causes?queue=orders.dead", "style.css"} {
		answer := s.post(view, nil)
		assert.Equal(t, http.StatusMethodNotAllowed, answer.Code, view)
		assert.Equal(t, "GET, HEAD", answer.Header().Get("Allow"))
	}
	for _, change := range []string{"stop", "redrive?queue=orders.dead&all=1", "discard?queue=orders.dead&all=1"} {
		answer := s.get(change)
		assert.Equal(t, http.StatusMethodNotAllowed, answer.Code, change)
		assert.Equal(t, "POST", answer.Header().Get("Allow"))
	}
}

// TestWorksUnderAnyPath: with and without StripPrefix.
func TestWorksUnderAnyPath(t *testing.T) {
	s := setup(t, some(), nil)
	for path, handler := range map[string]http.Handler{
		"/": s.page, "/admin/dead/": s.page, "/stripped/": http.StripPrefix("/stripped", s.page), "/a/b/": http.StripPrefix("/a/b/", s.page),
	} {
		mux := http.NewServeMux()
		mux.Handle(path, handler)
		server := httptest.NewServer(mux)
		defer server.Close()
		text := body(t, s.get(""), http.StatusOK)
		for _, link := range regexp.MustCompile(`(?:href|src|data-from)="([^"#]*)"`).FindAllStringSubmatch(text, -1) {
			base, err := url.Parse(server.URL + path)
			require.NoError(t, err)
			target, err := base.Parse(html.UnescapeString(link[1]))
			require.NoError(t, err)
			if strings.Contains(link[1], "orphans") || strings.Contains(link[1], "poison") {
				continue // the store has no such queue
			}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, target.String(), nil)
			require.NoError(t, err)
			r.Header.Set("Sec-Fetch-Site", "same-origin")
			answer, err := http.DefaultClient.Do(r)
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			assert.Equal(t, http.StatusOK, answer.StatusCode, target)
			assert.True(t, strings.HasPrefix(target.Path, path), target)
		}
	}
}

func TestConfigFaults(t *testing.T) {
	_, err := page.New(page.Config{Queues: []string{""}, Hosts: []string{"localhost:8080"}, Redact: []string{""}, MaxLetters: -1, Timeout: -1})
	for _, want := range []string{"Store is nil", "Queues[0]", `Hosts[0] is "localhost:8080"`, "Redact[0]", "MaxLetters is -1", "Timeout is -1ns"} {
		assert.ErrorContains(t, err, want)
	}
}

// TestOneLookAtATime: a view and a redrive do not begin while another view has the letters of the queue, which they would not see.
func TestOneLookAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := setup(t, nil, func(c *page.Config) { c.Timeout = 250 * time.Millisecond })
		looks, release := make(chan struct{}), make(chan struct{})
		s.store.letters = func(yield func(*letters.Letter) bool) {
			close(looks)
			<-release
			yield(letter("one", "reason"))
		}
		first := make(chan struct{})
		go func() {
			defer close(first)
			s.get("causes?queue=orders.dead")
		}()
		<-looks
		for _, view := range []string{"causes?queue=orders.dead", "letters?queue=orders.dead&all=1", "letter?queue=orders.dead&id=one",
			"test?queue=orders.dead&id=one"} {
			assert.Contains(t, body(t, s.ask(view), http.StatusServiceUnavailable), "The queue is busy", view)
		}
		id := s.confirmed(s.post("redrive?queue=orders.dead&all=1", url.Values{"step": {"check"}}))
		require.Equal(t, http.StatusSeeOther, s.post("redrive", url.Values{"step": {"start"}, "run": {id}}).Code)
		assert.Contains(t, body(t, s.ask("causes?queue=orders.dead"), http.StatusServiceUnavailable), "a redrive or discard, has its letters")
		require.Equal(t, http.StatusSeeOther, s.post("stop", url.Values{"run": {id}}).Code)
		s.ended(id)
		s.store.lock.Lock()
		assert.Equal(t, 1, s.store.browses)
		assert.Zero(t, s.store.dry)
		assert.Empty(t, s.store.redrives)
		s.store.lock.Unlock()

		close(release)
		<-first
		s.store.letters = some()
		assert.Contains(t, body(t, s.get("causes?queue=orders.dead"), http.StatusOK), "All 7 letters")
	})
}

// TestALetterThatWasNotReachedIsNotMissing: the look that did not find it has not seen all letters.
func TestALetterThatWasNotReachedIsNotMissing(t *testing.T) {
	for failed, want := range map[error]struct {
		status int
		text   string
	}{
		context.DeadlineExceeded: {http.StatusServiceUnavailable, "The time for looking was over after 7 letters"},
		errors.New("unreadable"): {http.StatusBadGateway, "unreadable"},
	} {
		s := setup(t, some(), nil)
		s.store.failed = failed
		assert.Contains(t, body(t, s.ask("letter?queue=orders.dead&id=absent"), want.status), want.text)
	}
}

var download = regexp.MustCompile(`href="(test\?[^"]+)"`)

// TestDownloadAsATest: the files are those of letters.GoTest, redacted, whatever the letter has.
func TestDownloadAsATest(t *testing.T) {
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

func TestOneLetterIsNotAll(t *testing.T) {
	text := body(t, setup(t, many(1), nil).get("causes?queue=orders.dead"), http.StatusOK)
	assert.Contains(t, text, "The one letter of the queue was looked at.")
}

// A character without a glyph, or that changes the direction of a text, is shown by its name.
func TestUnseenCharactersHaveNames(t *testing.T) {
	s := setup(t, func(yield func(*letters.Letter) bool) {
		yield(letter("a", "a\u00adb\u200bc\u200cd\u200de\u2028f\ufeffg\u202eh\u2066i\U000E0041j\u061ck"))
	}, nil)
	text := body(t, s.get("letter?queue=orders.dead&id=a"), http.StatusOK)
	assert.Contains(t, text, "a⟨soft hyphen⟩b⟨zero width space⟩c⟨zero width non-joiner⟩d⟨zero width joiner⟩e⟨line separator⟩f"+
		"⟨byte order mark⟩g⟨right-to-left override⟩h⟨left-to-right isolate⟩i⟨tag A⟩j⟨arabic letter mark⟩k")
}

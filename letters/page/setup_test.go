package page_test

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/page"
	"github.com/tieredretry/watermill-retry/retry"
)

const queue = "orders.dead"

// store has letters in memory and records what the page does with it. The browser test of wmretry uses a real one.
type store struct {
	letters func(yield func(*letters.Letter) bool)
	// before is called by Redrive and Discard, when they are no dry run.
	before func(ctx context.Context, progress func(letters.Progress)) error
	after  func(*letters.Summary) // changes the result of each of them

	failed error // ends Browse, behind the letters

	lock     sync.Mutex
	browsed  int // letters that the page has taken
	browses  int
	redrives []letters.Redrive // without dry runs
	discards []letters.Discard
	dry      int
}

func (s *store) Browse(ctx context.Context, from string, filter letters.Filter) iter.Seq2[*letters.Letter, error] {
	return func(yield func(*letters.Letter, error) bool) {
		s.lock.Lock()
		s.browses++
		s.lock.Unlock()
		if from != queue {
			yield(nil, fmt.Errorf("%w: %q", letters.ErrNoQueue, from))
			return
		}
		for l := range s.letters {
			if ctx.Err() != nil {
				yield(nil, ctx.Err())
				return
			}
			s.lock.Lock()
			s.browsed++
			s.lock.Unlock()
			if filter.Match(l, time.Now()) && !yield(l, nil) {
				return
			}
		}
		if s.failed != nil {
			yield(nil, s.failed)
		}
	}
}

func (s *store) change(ctx context.Context, filter letters.Filter, limit int, dry bool, progress func(letters.Progress)) (summary letters.Summary, err error) {
	for l := range s.letters {
		summary.Total++
		switch {
		case !filter.Match(l, time.Now()):
			summary.Other++
		case limit > 0 && summary.Done == limit:
			summary.Kept++
		default:
			summary.Done++
		}
	}
	if !dry && s.before != nil {
		err = s.before(ctx, progress)
	}
	if !dry && s.after != nil {
		s.after(&summary)
	}
	return summary, err
}

func (s *store) Redrive(ctx context.Context, _ string, options letters.Redrive) (letters.Summary, error) {
	s.lock.Lock()
	if options.DryRun {
		s.dry++
	} else {
		s.redrives = append(s.redrives, options)
	}
	s.lock.Unlock()
	return s.change(ctx, options.Filter, options.Limit, options.DryRun, options.Progress)
}

func (s *store) Discard(ctx context.Context, _ string, options letters.Discard) (letters.Summary, error) {
	s.lock.Lock()
	if !options.DryRun {
		s.discards = append(s.discards, options)
	}
	s.lock.Unlock()
	return s.change(ctx, options.Filter, options.Limit, options.DryRun, options.Progress)
}

func (s *store) Close() error { return nil }

// some returns letters of two causes.
func some() func(func(*letters.Letter) bool) { return many(7) }

func many(n int) func(func(*letters.Letter) bool) {
	return func(yield func(*letters.Letter) bool) {
		for i := range n {
			reason := fmt.Sprintf("card %d was declined", i)
			if i%7 > 4 {
				reason = "dial tcp: connection refused"
			}
			if !yield(letter(fmt.Sprintf("order-%d", i), reason)) {
				return
			}
		}
	}
}

func letter(id, reason string) *letters.Letter {
	last := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	return &letters.Letter{
		ID: id, Queue: queue, Target: "orders", Kind: letters.Library, Payload: []byte(`{"order":"` + id + `"}`),
		Metadata: message.Metadata{"customer": "ada"},
		Record: retry.Record{
			Failures: 5, FirstFailedAt: last.Add(-3 * time.Minute), LastFailedAt: last, Reason: reason, ErrorType: "*errors.errorString",
			DeadReason: retry.DeadReasonExhausted, Topic: "orders", Handler: "billing",
		},
	}
}

// site is a page and a browser without cookies and scripts.
type site struct {
	t     *testing.T
	page  *page.Page
	store *store
}

func setup(t *testing.T, has func(func(*letters.Letter) bool), change func(*page.Config)) site {
	t.Helper()
	s := &store{letters: has}
	config := page.Config{
		Store: s, AllowWrite: true, Queues: []string{"poison"},
		Status: func(context.Context) (letters.Status, error) { return status(), nil },
	}
	if change != nil {
		change(&config)
	}
	shown, err := page.New(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, shown.Close()) })
	return site{t, shown, s}
}

func status() letters.Status {
	return letters.Status{
		At: time.Now(),
		Queues: []letters.WorkQueue{{
			Name: "orders", Depth: letters.Depth{Queue: "orders", Messages: 12, Ready: 1234, Unacked: 8, Consumers: 2},
			Tiers: []letters.Tier{{Depth: letters.Depth{Queue: "orders.retry.10s", Messages: 40}, Delay: 10 * time.Second, NextDue: time.Now().Add(4 * time.Second)}},
			Dead:  letters.Depth{Queue: queue, Messages: 7},
		}},
		Orphans: letters.Depth{Queue: "retry.orphans", Messages: 3},
	}
}

func (s site) do(r *http.Request) *httptest.ResponseRecorder {
	s.t.Helper()
	answer := httptest.NewRecorder()
	s.page.ServeHTTP(answer, r)
	return answer
}

// get loads an address, as a click on the page itself does.
func (s site) get(address string) *httptest.ResponseRecorder {
	s.t.Helper()
	return s.do(request(address, "Sec-Fetch-Site", "same-origin"))
}

// ask asks as the links and buttons of the page do: what would count letters is a form.
func (s site) ask(address string) *httptest.ResponseRecorder {
	s.t.Helper()
	if strings.HasPrefix(address, "redrive?") || strings.HasPrefix(address, "discard?") {
		return s.post(address, nil)
	}
	return s.get(address)
}

// request returns a GET request with these headers, each a name and a value.
func request(address string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/admin/"+address, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

// post sends a form, as a browser does from the page itself.
func (s site) post(address string, fields url.Values) *httptest.ResponseRecorder {
	s.t.Helper()
	return s.do(form(address, fields))
}

func form(address string, fields url.Values) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/admin/"+address, strings.NewReader(fields.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return r
}

var run = regexp.MustCompile(`name="run" value="([A-Z2-7]{26})"`)

// confirmed returns the ID that a confirmation has.
func (s site) confirmed(answer *httptest.ResponseRecorder) string {
	s.t.Helper()
	text := body(s.t, answer, http.StatusOK)
	found := run.FindStringSubmatch(text)
	require.NotNil(s.t, found, text)
	return found[1]
}

// ended waits until a redrive or discard has ended, and returns its page.
func (s site) ended(id string) string {
	s.t.Helper()
	var text string
	require.Eventually(s.t, func() bool {
		text = body(s.t, s.get("job?part=1&id="+id), http.StatusOK)
		return strings.Contains(text, "data-ended")
	}, 30*time.Second, 5*time.Millisecond)
	return text
}

func body(t *testing.T, answer *httptest.ResponseRecorder, status int) string {
	t.Helper()
	text, err := io.ReadAll(answer.Result().Body)
	require.NoError(t, err)
	require.Equal(t, status, answer.Code, string(text))
	return string(text)
}

package page

import (
	"archive/zip"
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/internal/lettertext"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	maxReason  = 2 << 10  // bytes of a reason, and of other texts of a record
	maxValue   = 4 << 10  // bytes of a header's value
	maxHeaders = 200      // headers of one letter
	maxBody    = 64 << 10 // bytes of a body
)

type letterView struct {
	selection
	Letter     *letters.Letter
	Seen       looked
	Timeline   []event
	Headers    []field
	Hidden     int // headers that are not shown
	Form, Body string
	Cut        int // the bytes that Body has, where it has not all of them

	Redacted, Unused string // the rules of Config.Redact that replace a value in a test of the letter, and the others
}

// event is one line of the timeline. The template has its title.
type event struct {
	Kind  string // the class of its mark
	What  string
	At    time.Time
	Gap   time.Duration // since the event before, where both have a time
	N     int           // failures, redrives or snoozes
	Why   retry.DeadReason
	Again bool // the redrive had letters.Redrive.Again
	Text  string
	By    string
}

type field struct{ Name, Type, Value string }

// letter shows one letter.
func (p *Page) letter(w http.ResponseWriter, r *http.Request) error {
	shown, err := p.one(r)
	if err != nil {
		return err
	}
	shown.Timeline = timeline(shown.Letter)
	shown.Headers, shown.Hidden = headers(shown.Letter)
	shown.Form, shown.Body, shown.Cut = bodyOf(shown.Letter.Payload)
	if test, err := p.testOf(shown.Letter); err == nil { // the download shows the error
		shown.Redacted = strings.Join(test.Redacted, ", ")
		shown.Unused = strings.Join(lettertext.Unused(p.config.Redact, test.Redacted), ", ")
	}
	p.render(w, http.StatusOK, "letter.html", cut(80, shown.IDs[0]), shown)
	return nil
}

// one returns the letter of a selection.
func (p *Page) one(r *http.Request) (one letterView, err error) {
	if one.selection, err = p.selected(r); err != nil {
		return one, err
	}
	if len(one.IDs) != 1 {
		return one, failure{http.StatusBadRequest, "The address has no ID of a letter.", nil}
	}
	one.Seen, err = p.look(r.Context(), one.Queue, func(l *letters.Letter) {
		if one.Letter == nil && l.ID == one.IDs[0] {
			one.Letter = l
		}
	})
	if err != nil || one.Letter != nil {
		return one, err
	}
	status, text := http.StatusNotFound, "The queue has no letter with this ID. It may have been redriven or discarded."
	switch {
	case one.Seen.Taken:
		status, text = http.StatusServiceUnavailable, busy
	case one.Seen.Late:
		status, text = http.StatusServiceUnavailable, fmt.Sprintf("The time for looking was over after %s, and none of "+
			"them has this ID. Load the page again in a moment; “wmretry dead show” has no such time.",
			plural(one.Seen.Letters, "letter", "letters"))
	case one.Seen.Err != "":
		status, text = http.StatusBadGateway, one.Seen.Err
	case one.Seen.More:
		text = fmt.Sprintf("The first %s letters of the queue have no letter with this ID. The page does not look at "+
			"more; “wmretry dead show” does.", number(one.Seen.Letters))
	}
	return one, failure{status, text, nil}
}

func (p *Page) testOf(l *letters.Letter) (*letters.GoTest, error) {
	config := letters.GoTestConfig{Name: l.Record.Handler, Redact: p.config.Redact}
	if config.Validate() != nil { // the name of a handler can be any text
		config.Name = "letter"
	}
	return l.GoTest(config)
}

// goTest sends a letter as a test, with the rules of Config.Redact.
func (p *Page) goTest(w http.ResponseWriter, r *http.Request) error {
	one, err := p.one(r)
	if err != nil {
		return err
	}
	test, err := p.testOf(one.Letter)
	if err != nil {
		return failure{http.StatusUnprocessableEntity, "This letter cannot be downloaded as a test. “wmretry dead " +
			"show --go-test” can leave the payload out.", err}
	}
	var packed bytes.Buffer
	files := zip.NewWriter(&packed)
	for _, name := range slices.Sorted(maps.Keys(test.Files)) {
		file, err := files.Create(name)
		if err == nil {
			_, err = file.Write(test.Files[name])
		}
		if err != nil {
			return err
		}
	}
	if err := files.Close(); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/zip")
	w.Header().Set("Content-Disposition", `attachment; filename="`+test.Name+`.zip"`)
	_, _ = w.Write(packed.Bytes()) // the browser may be gone
	return nil
}

// timeline returns what has happened to a letter: earlier redrives first, because each begins a new count.
func timeline(l *letters.Letter) []event {
	var events []event
	add := func(is bool, e event) {
		if is {
			events = append(events, e)
		}
	}
	at, err := time.Parse(time.RFC3339, l.Properties["timestamp"])
	add(err == nil, event{Kind: "snoozed", What: "published", At: at})
	earlier := l.Redriven.Times - len(l.Redriven.Redrives)
	add(earlier > 0, event{Kind: "redriven", What: "earlier", N: earlier, Text: "The history keeps only the last ones."})
	for _, r := range l.Redriven.Redrives {
		add(true, event{Kind: "dead", What: "library", N: r.Failures, Why: r.DeadReason, Text: r.Reason})
		add(true, event{Kind: "redriven", What: "redriven", At: r.At, Again: r.Again, Text: r.Note, By: r.By})
	}
	record := l.Record
	add(!record.FirstArrivedAt.IsZero(), event{Kind: "snoozed", What: "arrived", At: record.FirstArrivedAt})
	last, more := "last", record.Failures-1 // the failures before the last one
	if more == 0 {
		last = "only"
	} else if !record.FirstFailedAt.IsZero() {
		add(true, event{Kind: "failed", What: "first", At: record.FirstFailedAt})
		more--
	}
	add(more > 0, event{Kind: "failed", What: "more", N: more})
	add(record.Snoozes > 0, event{Kind: "snoozed", What: "snoozed", N: record.Snoozes})
	add(!record.LastFailedAt.IsZero() || record.Reason != "",
		event{Kind: "failed", What: last, At: record.LastFailedAt, Text: record.Reason, By: record.Handler})
	end := event{Kind: "dead", What: string(l.Kind)}
	if l.Kind == letters.Library || l.Kind == letters.Broker { // of other kinds the record does not have it
		end.At, end.Why = l.DeadAt(), record.DeadReason
	}
	add(true, end)
	var before time.Time
	for i, e := range events {
		if !e.At.IsZero() {
			if !before.IsZero() && e.At.After(before) {
				events[i].Gap = e.At.Sub(before)
			}
			before = e.At
		}
	}
	return events
}

// headers returns the headers of the app with their types, and how many there are beyond maxHeaders.
func headers(l *letters.Letter) (fields []field, hidden int) {
	for name, value := range l.Metadata {
		fields = append(fields, field{name, "string", value})
	}
	for name, value := range l.Headers {
		typ, text := lettertext.Header(value)
		fields = append(fields, field{name, typ, text})
	}
	slices.SortFunc(fields, func(a, b field) int { return strings.Compare(a.Name, b.Name) })
	return first(maxHeaders, fields)
}

// bodyOf returns the form and the text of a body, and how many of its bytes that has where these are not all.
func bodyOf(payload []byte) (form, text string, shown int) {
	if len(payload) == 0 {
		return "", "", 0
	}
	if len(payload) > maxBody {
		payload = []byte(lettertext.Cut(maxBody, string(payload[:maxBody+1])))
		shown = len(payload)
	}
	form, text = lettertext.Body(payload)
	return form, text, shown
}

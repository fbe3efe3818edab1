package page

import (
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
)

// maxText is how many bytes of an id are accepted.
const maxText = 1 << 14

// selection is the letters that a page is about. It is in the query of each address: there all bytes survive, in a
// field of a form only valid UTF-8 does.
type selection struct {
	Queue      string
	Cause      string // the ID of one
	DeadReason string // the reason of the letters of the cause; empty: any
	Key        string // the key of the letters of the cause; empty: any
	IDs        []string
	All        bool // all letters of the queue: a change must not take an empty selection for that
}

// selected reads a selection, and refuses a queue that the page does not show.
func (p *Page) selected(r *http.Request) (selection, error) {
	query := r.URL.Query()
	s := selection{Queue: query.Get("queue"), Cause: query.Get("cause"), DeadReason: query.Get("dead_reason"),
		Key: query.Get("key"), IDs: query["id"], All: query.Get("all") != ""}
	for _, pick := range r.PostForm["pick"] {
		id, err := url.QueryUnescape(pick)
		if err != nil {
			return s, failure{http.StatusBadRequest, "The ID of a letter cannot be read.", err}
		}
		s.IDs = append(s.IDs, id)
	}
	if len(s.IDs) > pageSize ||
		slices.ContainsFunc(s.IDs, func(id string) bool { return id == "" || len(id) > maxText }) {
		return s,
			failure{http.StatusBadRequest, "The address has too many letters, or an ID that no letter has.", nil}
	}
	if err := s.filter().Validate(); err != nil {
		return s, failure{http.StatusBadRequest, "The address names no cause.", err}
	}
	status, err := p.current(r.Context())
	if slices.Contains(p.config.Queues, s.Queue) || s.Queue != "" && shows(status, s.Queue) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	return s, failure{http.StatusNotFound, "The board has no such queue of dead letters or orphans.", nil}
}

// shows reports whether a status has the queue as one of letters.
func shows(status letters.Status, queue string) bool {
	return queue == status.Orphans.Queue ||
		slices.ContainsFunc(status.Queues, func(work letters.WorkQueue) bool { return work.Dead.Queue == queue })
}

// filter returns the filter of the selection.
func (s selection) filter() letters.Filter {
	filter := letters.Filter{IDs: s.IDs, Cause: s.Cause, DeadReason: s.DeadReason}
	if s.Key != "" {
		filter.Metadata = map[string]string{recordkey.Key: s.Key}
	}
	return filter
}

// empty reports whether a change must refuse the selection.
func (s selection) empty() bool { return s.Cause == "" && len(s.IDs) == 0 && !s.All }

// QueueQuery returns the queue alone as a query.
func (s selection) QueueQuery() template.URL {
	return selection{Queue: s.Queue}.Query()
}

// Query returns the selection as a query.
func (s selection) Query() template.URL {
	values := url.Values{"queue": {s.Queue}, "cause": {s.Cause}, "dead_reason": {s.DeadReason}, "key": {s.Key}}
	maps.DeleteFunc(values, func(_ string, value []string) bool { return value[0] == "" })
	values["id"] = s.IDs
	if s.All {
		values.Set("all", "1")
	}
	return template.URL(values.Encode())
}

// One returns the selection of one letter of the queue.
func (s selection) One(id string) selection { return selection{Queue: s.Queue, IDs: []string{id}} }

// Whole returns the selection of all letters of the queue.
func (s selection) Whole() selection { return selection{Queue: s.Queue, All: true} }

// Of returns the selection of a cause.
func (s selection) Of(cause letters.Cause) selection {
	return selection{Queue: s.Queue, Cause: cause.ID(), DeadReason: string(cause.DeadReason)}
}

// OfKey returns the selection of the letters of a cause with a key.
func (s selection) OfKey(cause letters.Cause, key string) selection {
	of := s.Of(cause)
	of.Key = key
	return of
}

// Pick is the value of an ID in a form.
func (s selection) Pick(id string) string { return url.QueryEscape(id) }

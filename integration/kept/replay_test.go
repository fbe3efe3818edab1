package kept

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

// seen is what the library declares, says and does. An object is the JSON of a letters.Letter, whose headers are a
// table and whose payload is quoted, or of a letters.Group without the example.
type seen struct {
	Declared definitions         `json:"declared"`  // what the apps declare in an empty virtual host
	Letters  map[string][]object `json:"letters"`   // the letters of each queue
	Causes   map[string][]object `json:"causes"`    // the causes of each queue
	Calls    []call              `json:"calls"`     // the calls of the handlers
	Died     map[string][]object `json:"died"`      // the letters that died again, of each queue
	LeftOver map[string]int      `json:"left_over"` // the number of messages of each other queue
	exported []byte              // the letters, as a file
}

type object map[string]any

// A call is one of a handler.
type call struct {
	Payload  string            `json:"payload"` // quoted
	Handler  string            `json:"handler"`
	UUID     string            `json:"uuid"`
	Record   object            `json:"record,omitzero"`
	Redriven int               `json:"redriven,omitzero"` // times
	Metadata map[string]string `json:"metadata"`
	Error    string            `json:"error,omitzero"`
}

// longest is how long a message waits before it comes back by itself.
const longest = time.Minute

// laterKey is the key of metadata that decides what the handlers of a replay return: "retry N" fails until the message
// has failed N times, "die" fails for good, and "wait" marks one that is only to go back to its tier. Without it they
// return nil.
const laterKey = "later"

// A replay brings the messages of a file to their end.
type replay struct {
	t       *testing.T
	uri     string
	file    file
	channel *amqp091.Channel
	store   *deadletter.Store
	seen    seen

	mu    sync.Mutex
	ended map[string]bool // whether it has ended, by identity
}

// play puts the messages of a file into an empty virtual host, starts apps, drains the long tiers and redrives all
// letters.
func play(t *testing.T, f file) seen {
	t.Helper()
	r := &replay{t: t, file: f, ended: map[string]bool{}}
	uri, remove, err := broker.Host(broker.Management(t), broker.URL(t), "kept")
	require.NoError(t, err)
	defer func() { _ = remove() }()
	r.uri = uri
	connection, err := amqp091.Dial(uri)
	require.NoError(t, err)
	defer connection.Close()
	r.channel, err = connection.Channel()
	require.NoError(t, err)
	r.store, err = deadletter.Open(deadletter.Config{URI: uri, Marshal: amqp2.DefaultMarshaler{}.Marshal}, nil)
	require.NoError(t, err)
	defer r.store.Close()
	r.restore()
	r.list()
	r.bringBack()
	r.end()
	return r.seen
}

// restore lists what the apps declare, and publishes the messages.
func (r *replay) restore() {
	r.classic("mails", "audit")
	r.start((*process).present)()
	r.seen.Declared = declared(r.t, broker.Management(r.t), path.Base(r.uri))
	for _, d := range []definitions{r.file.Expected.Declared, r.file.Former} {
		d.declare(r.t, r.channel)
	}
	require.NoError(r.t, r.channel.Confirm(false))
	returned := r.channel.NotifyReturn(make(chan amqp091.Return, len(r.file.Messages)))
	for _, m := range r.file.Messages {
		confirm, err := r.channel.PublishWithDeferredConfirm(m.Exchange, m.RoutingKey, true, false, m.publishing())
		require.NoError(r.t, err)
		acked, err := confirm.WaitContext(r.t.Context())
		require.NoError(r.t, err)
		require.True(r.t, acked, m.identity())
		require.Empty(r.t, returned, "message %s has no route", m.identity())
	}
}

// list lists and exports the letters.
func (r *replay) list() {
	r.seen.Letters, r.seen.Causes = r.look(r.queues(), time.Time{})
	var file bytes.Buffer
	for _, queue := range r.queues() {
		_, err := r.store.Export(r.t.Context(), queue, letters.Filter{}, &file)
		require.NoError(r.t, err)
	}
	r.seen.exported = file.Bytes()
}

// queues are those with letters.
func (r *replay) queues() (queues []string) {
	for _, m := range r.file.Messages {
		if hasLetters(m.Queue) && !slices.Contains(queues, m.Queue) {
			queues = append(queues, m.Queue)
		}
	}
	return queues
}

// hasLetters reports whether a queue has dead letters or orphans.
func hasLetters(queue string) bool {
	return strings.HasSuffix(queue, ".dead") || slices.Contains([]string{"retry.orphans", "poisoned", "parked"}, queue)
}

// look returns what the library says of the letters of queues. It leaves out the times after a time, unless that is
// zero.
func (r *replay) look(queues []string, after time.Time) (all, causes map[string][]object) {
	all, causes = map[string][]object{}, map[string][]object{}
	for _, queue := range queues {
		var groups letters.Groups
		for l, err := range r.store.Browse(r.t.Context(), queue, letters.Filter{}) {
			require.NoError(r.t, err)
			groups.Add(l)
			letter := r.object(l, after)
			letter["headers"] = r.object(table(l.Headers), time.Time{})
			letter["payload"] = strconv.Quote(string(l.Payload))
			all[queue] = append(all[queue], letter)
		}
		for _, group := range groups.Sorted() {
			cause := r.object(group, after)
			delete(cause, "example") // it depends on the order of the queue
			causes[queue] = append(causes[queue], cause)
		}
		slices.SortFunc(all[queue], func(a, b object) int {
			return strings.Compare(a["payload"].(string), b["payload"].(string))
		})
		slices.SortFunc(causes[queue], func(a, b object) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	}
	return all, causes
}

// object returns the JSON of a value. Where after is not zero, later times are "later", and the ids of redrives are
// left out.
func (r *replay) object(of any, after time.Time) (o object) {
	text, err := json.Marshal(of)
	require.NoError(r.t, err)
	require.NoError(r.t, json.Unmarshal(text, &o))
	if !after.IsZero() {
		mask(map[string]any(o), after)
	}
	return o
}

func mask(of any, after time.Time) any {
	switch of := of.(type) {
	case map[string]any:
		for name, value := range of {
			of[name] = mask(value, after)
		}
		if _, isRedrive := of["run"]; isRedrive {
			of["run"] = ""
		}
	case []any:
		for i, value := range of {
			of[i] = mask(value, after)
		}
	case string:
		if at, err := time.Parse(time.RFC3339, of); err == nil && at.After(after) {
			return "later"
		}
	}
	return of
}

// bringBack starts the apps, drains the tiers that messages wait on for long, redrives the letters, and waits for the
// end of each message.
func (r *replay) bringBack() {
	r.classic("left")
	defer r.start((*process).present, (*process).gone)()
	var steps sync.WaitGroup
	for _, q := range slices.Concat(r.file.Expected.Declared.Queues, r.file.Former.Queues) {
		kept := slices.ContainsFunc(r.file.Messages, func(m kept) bool { return m.Queue == q.Name })
		if ttl, _ := q.Arguments["x-message-ttl"].(float64); kept && int64(ttl) > longest.Milliseconds() {
			steps.Go(func() {
				_, err := r.store.Drain(r.t.Context(), q.Name, letters.Redrive{})
				assert.NoError(r.t, err, q.Name)
			})
		}
	}
	for _, queue := range r.queues() {
		steps.Go(func() { assert.NoError(r.t, r.redrive(queue), queue) })
	}
	steps.Wait()
	var missing []string
	defer func() {
		if r.t.Failed() {
			r.t.Logf("missing are %q", missing)
		}
	}()
	broker.Eventually(r.t, time.Minute, func() bool { missing = r.missing(); return len(missing) == 0 },
		"the end of each message")
}

// redrive sends the kept letters of a queue back, and not those that have died meanwhile. What names no work queue is
// sent to orders.
func (r *replay) redrive(queue string) error {
	options := letters.Redrive{By: "test", Note: "kept"}
	for _, l := range r.seen.Letters[queue] {
		options.Filter.IDs = append(options.Filter.IDs, fmt.Sprint(l["id"]))
	}
	if queue == "parked" {
		options.To = "orders"
	}
	_, err := r.store.Redrive(r.t.Context(), queue, options)
	if queue == "retry.orphans" && errors.Is(err, letters.ErrNoTarget) {
		options.To = "orders"
		_, err = r.store.Redrive(r.t.Context(), queue, options)
	}
	return err
}

// missing returns the messages that have not come to their end: a handler, or their tier for another round.
func (r *replay) missing() (missing []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.file.Messages {
		if r.ended[m.identity()] || m.Headers[laterKey] == "wait" && r.depth(m.Queue) > 0 {
			continue
		}
		missing = append(missing, m.identity())
	}
	return missing
}

func (r *replay) depth(queue string) int {
	state, err := r.channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(r.t, err)
	return state.Messages
}

// handle is the handler of all apps.
func (r *replay) handle(name string, msg *message.Message) error {
	record, known := retry.ReadRecord(msg.Metadata)
	c := call{Payload: strconv.Quote(string(msg.Payload)), Handler: name, UUID: msg.UUID,
		Metadata: maps.Clone(msg.Metadata)}
	if known {
		record.DueAt = time.Time{}
		c.Record = r.object(record, r.file.KeptAt)
	}
	if history, redriven := letters.ReadRedriven(msg.Metadata); redriven {
		c.Redriven = history.Times
	}
	for _, key := range append(retry.RecordKeys(), recordkey.Redriven, recordkey.Properties) {
		delete(c.Metadata, key)
	}
	err := later(msg.Metadata[laterKey], record.Failures)
	if err != nil {
		c.Error = err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen.Calls = append(r.seen.Calls, c)
	r.ended[identity(msg.Payload)] = err == nil || backoff.IsPermanent(err)
	return err
}

func later(word string, failures int) error {
	word, text, _ := strings.Cut(word, " ")
	until, _ := strconv.Atoi(text)
	switch {
	case word == "die":
		return backoff.Permanent(errDown)
	case word == "retry" && failures < until:
		return errDown
	}
	return nil
}

// end lists what has died again, and counts what is left.
func (r *replay) end() {
	r.seen.LeftOver = map[string]int{}
	var dead []string
	for _, q := range slices.Concat(r.file.Expected.Declared.Queues, r.file.Former.Queues) {
		switch n := r.depth(q.Name); {
		case n > 0 && hasLetters(q.Name):
			dead = append(dead, q.Name)
		case n > 0:
			r.seen.LeftOver[q.Name] = n
		}
	}
	slices.SortFunc(r.seen.Calls, func(a, b call) int {
		return cmp.Or(strings.Compare(a.Payload, b.Payload), strings.Compare(a.Handler, b.Handler),
			cmp.Compare(a.failures(), b.failures()))
	})
	r.seen.Died, _ = r.look(dead, r.file.KeptAt)
}

func (c *call) failures() float64 {
	n, _ := c.Record["failures"].(float64)
	return n
}

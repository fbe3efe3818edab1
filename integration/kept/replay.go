package kept

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	amqp2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

// Seen is what the library declares, says and does.
type Seen struct {
	Declared Definitions         `json:"declared"`  // what the apps declare in an empty virtual host
	Letters  map[string][]Letter `json:"letters"`   // the letters of each queue
	Causes   map[string][]Cause  `json:"causes"`    // the causes of each queue
	Calls    []Call              `json:"calls"`     // the calls of the handlers
	Died     map[string][]Letter `json:"died"`      // again, of each queue
	LeftOver map[string]int      `json:"left_over"` // the number of messages of each other queue
	Exported []byte              `json:"-"`         // the letters, as a file
}

// A Letter is the JSON of a letters.Letter. Its headers are a table, and its payload is quoted.
type Letter map[string]any

// A Cause is the JSON of a letters.Group, without the example.
type Cause map[string]any

// A Call is one of a handler.
type Call struct {
	Payload  string            `json:"payload"` // quoted
	Handler  string            `json:"handler"`
	UUID     string            `json:"uuid"`
	Record   map[string]any    `json:"record,omitzero"`
	Redriven int               `json:"redriven,omitzero"` // times
	Metadata map[string]string `json:"metadata"`
	Error    string            `json:"error,omitzero"`
}

const (
	longest  = time.Minute // that a message waits before it comes back by itself
	patience = time.Minute // for one event
)

// laterKey is the key of metadata that decides what the handlers of a Replay return: "retry N" fails until the message
// has failed N times, "die" fails for good, and "wait" marks one that is only to go back to its tier. Without it they
// return nil.
const laterKey = "later"

// A replay brings the messages of a file to their end.
type replay struct {
	uri     string
	file    *File
	client  *rabbithole.Client
	channel *amqp091.Channel
	store   *deadletter.Store
	seen    Seen

	mu    sync.Mutex
	ended map[string]bool // whether it has ended, by identity
}

// Replay puts the messages of a file into an empty virtual host, starts apps, drains the long tiers and redrives all
// letters.
func Replay(ctx context.Context, client *rabbithole.Client, uri string, file *File) (seen Seen, err error) {
	r := &replay{uri: uri, file: file, client: client, ended: map[string]bool{}}
	connection, err := amqp091.Dial(uri)
	if err != nil {
		return seen, err
	}
	defer connection.Close()
	if r.channel, err = connection.Channel(); err != nil {
		return seen, err
	}
	if r.store, err = openStore(uri); err != nil {
		return seen, err
	}
	defer func() { err = errors.Join(err, r.store.Close()) }()
	for _, step := range []func(context.Context) error{r.restore, r.look, r.bringBack, r.end} {
		if err := step(ctx); err != nil {
			return seen, err
		}
	}
	return r.seen, nil
}

// openStore opens the letters of a virtual host.
func openStore(uri string) (*deadletter.Store, error) {
	return deadletter.Open(deadletter.Config{URI: uri, Marshal: amqp2.DefaultMarshaler{}.Marshal}, nil)
}

// restore compares what the apps declare, and publishes the messages.
func (r *replay) restore(ctx context.Context) error {
	stop, err := start(r.uri, present, r.handle)
	if err != nil {
		return err
	}
	if err := stop(); err != nil {
		return err
	}
	parsed, err := url.Parse(r.uri)
	if err != nil {
		return err
	}
	if r.seen.Declared, err = declared(r.client, strings.TrimPrefix(parsed.Path, "/")); err != nil {
		return err
	}
	if err := errors.Join(r.file.Expected.Declared.declare(r.channel), r.file.Former.declare(r.channel)); err != nil {
		return fmt.Errorf("the kept topology differs from that of the apps: %w", err)
	}
	if err := r.channel.Confirm(false); err != nil {
		return err
	}
	returned := r.channel.NotifyReturn(make(chan amqp091.Return, len(r.file.Messages)))
	for _, m := range r.file.Messages {
		confirm, err := r.channel.PublishWithDeferredConfirm(m.Exchange, m.RoutingKey, true, false, m.publishing())
		if err != nil {
			return err
		}
		if acked, err := confirm.WaitContext(ctx); err != nil || !acked {
			return fmt.Errorf("message %s is not confirmed: %w", m.Identity(), err)
		}
		select {
		case lost := <-returned:
			return fmt.Errorf("message %s has no route: %s", m.Identity(), lost.ReplyText)
		default:
		}
	}
	return nil
}

// look lists and exports the letters.
func (r *replay) look(ctx context.Context) (err error) {
	if r.seen.Letters, r.seen.Causes, err = look(ctx, r.store, r.queues(), time.Time{}); err != nil {
		return err
	}
	var file bytes.Buffer
	for _, queue := range r.queues() {
		if _, err := r.store.Export(ctx, queue, letters.Filter{}, &file); err != nil {
			return err
		}
	}
	r.seen.Exported = file.Bytes()
	return nil
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
func look(ctx context.Context, store letters.Store, queues []string, after time.Time) (
	all map[string][]Letter, causes map[string][]Cause, err error,
) {
	all, causes = map[string][]Letter{}, map[string][]Cause{}
	for _, queue := range queues {
		var groups letters.Groups
		for l, err := range store.Browse(ctx, queue, letters.Filter{}) {
			if err != nil {
				return nil, nil, err
			}
			groups.Add(l)
			letter, err := object(l, after)
			if err != nil {
				return nil, nil, err
			}
			if letter["headers"], err = object(table(l.Headers), time.Time{}); err != nil {
				return nil, nil, err
			}
			letter["payload"] = strconv.Quote(string(l.Payload))
			all[queue] = append(all[queue], letter)
		}
		slices.SortFunc(all[queue], func(a, b Letter) int {
			return strings.Compare(a["payload"].(string), b["payload"].(string))
		})
		for _, group := range groups.Sorted() {
			cause, err := object(group, after)
			if err != nil {
				return nil, nil, err
			}
			delete(cause, "example") // it depends on the order of the queue
			causes[queue] = append(causes[queue], cause)
		}
		slices.SortFunc(causes[queue], func(a, b Cause) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	}
	return all, causes, nil
}

// object returns the JSON of a value. Where after is not zero, later times are "later", and the ids of redrives are
// left out.
func object(of any, after time.Time) (object map[string]any, err error) {
	text, err := json.Marshal(of)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &object); err != nil || after.IsZero() {
		return object, err
	}
	return masked(object, after).(map[string]any), nil
}

func masked(of any, after time.Time) any {
	switch of := of.(type) {
	case map[string]any:
		for name, value := range of {
			of[name] = masked(value, after)
		}
		if _, isRedrive := of["run"]; isRedrive {
			of["run"] = ""
		}
	case []any:
		for i, value := range of {
			of[i] = masked(value, after)
		}
	case string:
		if at, err := time.Parse(time.RFC3339, of); err == nil && at.After(after) {
			return "later"
		}
	}
	return of
}

// bringBack starts the apps, drains the long tiers, redrives the letters, and waits for the end of each message.
func (r *replay) bringBack(ctx context.Context) (err error) {
	for _, some := range []apps{present, gone} {
		stop, err := start(r.uri, some, r.handle)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	if err := r.bringHome(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		missing, err := r.missing()
		if err != nil || len(missing) == 0 {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("messages are missing: %q", missing)
		}
	}
}

// bringHome drains the tiers that messages wait on for long, and redrives the letters: all queues at the same time.
func (r *replay) bringHome(ctx context.Context) error {
	var steps []func() error
	for _, q := range slices.Concat(r.file.Expected.Declared.Queues, r.file.Former.Queues) {
		if ttl, _ := q.Arguments["x-message-ttl"].(int64); ttl <= longest.Milliseconds() || !r.has(q.Name) {
			continue
		}
		steps = append(steps, func() error {
			if _, err := r.store.Drain(ctx, q.Name, letters.Redrive{}); err != nil {
				return fmt.Errorf("drain %q: %w", q.Name, err)
			}
			return nil
		})
	}
	for _, queue := range r.queues() {
		steps = append(steps, func() error { return r.redrive(ctx, queue) })
	}
	return together(steps)
}

// together runs steps at the same time, and joins their errors.
func together(steps []func() error) error {
	faults := make([]error, len(steps))
	var group sync.WaitGroup
	for i, step := range steps {
		group.Go(func() { faults[i] = step() })
	}
	group.Wait()
	return errors.Join(faults...)
}

// has reports whether messages of a queue were kept.
func (r *replay) has(queue string) bool {
	return slices.ContainsFunc(r.file.Messages, func(m Message) bool { return m.Queue == queue })
}

// redrive sends the kept letters of a queue back, and not those that have died meanwhile. What names no work queue is
// sent to orders.
func (r *replay) redrive(ctx context.Context, queue string) error {
	options := letters.Redrive{By: "test", Note: "kept"}
	for _, l := range r.seen.Letters[queue] {
		options.Filter.IDs = append(options.Filter.IDs, fmt.Sprint(l["id"]))
	}
	if queue == "parked" {
		options.To = "orders"
	}
	_, err := r.store.Redrive(ctx, queue, options)
	if queue == "retry.orphans" && errors.Is(err, letters.ErrNoTarget) {
		options.To = "orders"
		_, err = r.store.Redrive(ctx, queue, options)
	}
	if err != nil {
		return fmt.Errorf("redrive %q: %w", queue, err)
	}
	return nil
}

// missing returns the messages that have not come to their end: a handler, or their tier for another round.
func (r *replay) missing() (missing []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.file.Messages {
		ended := r.ended[m.Identity()]
		if m.Headers[laterKey] == "wait" {
			state, err := r.channel.QueueDeclarePassive(m.Queue, true, false, false, false, nil)
			if err != nil {
				return nil, err
			}
			ended = ended || state.Messages > 0
		}
		if !ended {
			missing = append(missing, m.Identity())
		}
	}
	return missing, nil
}

// handle is the handler of all apps.
func (r *replay) handle(name string, msg *message.Message) error {
	id := identity(msg.Payload)
	record, known := retry.ReadRecord(msg.Metadata)
	call := Call{
		Payload: strconv.Quote(string(msg.Payload)), Handler: name, UUID: msg.UUID, Metadata: maps.Clone(msg.Metadata),
	}
	if known {
		record.DueAt = time.Time{}
		call.Record, _ = object(record, r.file.KeptAt)
	}
	if history, redriven := letters.ReadRedriven(msg.Metadata); redriven {
		call.Redriven = history.Times
	}
	for _, key := range append(retry.RecordKeys(), recordkey.Redriven, recordkey.Properties) {
		delete(call.Metadata, key)
	}
	err := later(msg.Metadata[laterKey], record.Failures)
	if err != nil {
		call.Error = err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen.Calls = append(r.seen.Calls, call)
	r.ended[id] = err == nil || backoff.IsPermanent(err)
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
func (r *replay) end(ctx context.Context) (err error) {
	all := slices.Concat(r.file.Expected.Declared.Queues, r.file.Former.Queues)
	r.seen.LeftOver = map[string]int{}
	var dead []string
	for _, q := range all {
		state, err := r.channel.QueueDeclarePassive(q.Name, true, false, false, false, nil)
		switch {
		case err != nil:
			return err
		case state.Messages > 0 && hasLetters(q.Name):
			dead = append(dead, q.Name)
		case state.Messages > 0:
			r.seen.LeftOver[q.Name] = state.Messages
		}
	}
	slices.SortFunc(r.seen.Calls, func(a, b Call) int {
		return cmp.Or(
			strings.Compare(a.Payload, b.Payload), strings.Compare(a.Handler, b.Handler),
			cmp.Compare(a.failures(), b.failures()),
		)
	})
	r.seen.Died, _, err = look(ctx, r.store, dead, r.file.KeptAt)
	return err
}

func (c *Call) failures() float64 {
	n, _ := c.Record["failures"].(float64)
	return n
}

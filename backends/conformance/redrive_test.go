package conformance

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends"
	"github.com/tieredretry/watermill-retry/backends/registry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

var (
	errStock = errors.New("no stock")
	ofStock  = letters.Filter{Reason: regexp.MustCompile(`^no stock$`)}
	ofOutage = letters.Filter{Reason: regexp.MustCompile(`^the service is down$`)}
)

// outage is an app whose messages die at once: those with an even number of errDown, the others of errStock.
type outage struct {
	f      *fixture
	app    backends.App
	topics []string
	queue  string // of its dead letters

	mu      sync.Mutex
	healthy bool
	calls   map[string][]*message.Message // by id
}

func (f *fixture) outage() *outage {
	o := &outage{f: f, topics: f.topics(1), app: crashApp("g"+f.name, "p"+f.name), calls: map[string][]*message.Message{}}
	o.app.HandlerLimit = time.Minute // a slow machine must not cause duplicates: a letter of each would come
	return o
}

func (o *outage) handle(msg *message.Message) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls[msg.UUID] = append(o.calls[msg.UUID], msg.Copy())
	switch {
	case o.healthy:
		return nil
	case isOdd(msg.UUID):
		return backoff.Permanent(errStock)
	default:
		return backoff.Permanent(errDown)
	}
}

func isOdd(id string) bool { return strings.Contains("13579", id[len(id)-1:]) }

func split(all []string) (evens, odds []string) {
	for _, id := range all {
		if isOdd(id) {
			odds = append(odds, id)
		} else {
			evens = append(evens, id)
		}
	}
	return evens, odds
}

// recover makes the handler work, and forgets its calls.
func (o *outage) recover() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.healthy, o.calls = true, map[string][]*message.Message{}
}

func (o *outage) handled() (ids []string, calls int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, all := range o.calls {
		ids = append(ids, id)
		calls += len(all)
	}
	slices.Sort(ids)
	return ids, calls
}

// first returns what the handler got first.
func (o *outage) first(id string) *message.Message {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.calls[id][0]
}

// open connects to the dead letters. It returns nil where the backend has none.
func (o *outage) open() letters.Store {
	t := o.f.t
	t.Helper()
	store, err := o.f.backend.Letters(o.app)
	if o.f.Expect.Letters == registry.NoLetters {
		require.ErrorIs(t, err, backends.ErrNoLetters)
		return nil
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	o.queue = o.f.backend.QueueOf(o.app, handlerName(0), o.topics[0])
	return store
}

// browse returns the letters, and the IDs of those with an even number and of the others. Delivery is at least once: a message can die
// twice, and then has two letters.
func (o *outage) browse(store letters.Store, filter letters.Filter) (found []*letters.Letter, evens, odds []string) {
	o.f.t.Helper()
	var all []string
	for letter, err := range store.Browse(noContext, o.queue, filter) {
		require.NoError(o.f.t, err)
		found, all = append(found, letter), append(all, letter.ID)
	}
	// RabbitMQ 3.10 does not keep the order of letters whose delivery limit is not known yet.
	slices.SortStableFunc(found, func(a, b *letters.Letter) int { return strings.Compare(a.ID, b.ID) })
	slices.Sort(all)
	evens, odds = split(slices.Compact(all))
	return found, evens, odds
}

// kill publishes messages and waits until all are dead.
func (o *outage) kill(store letters.Store, all []string) {
	o.f.t.Helper()
	o.f.publish(o.topics, all...)
	o.awaitLetters(store, len(all))
}

// awaitLetters waits until so many letters are there.
func (o *outage) awaitLetters(store letters.Store, want int) {
	o.f.t.Helper()
	o.eventually("all are dead", func() bool {
		found := map[string]bool{}
		for letter, err := range store.Browse(noContext, o.queue, letters.Filter{}) {
			if errors.Is(err, letters.ErrNoQueue) { // before the first one
				return false
			}
			require.NoError(o.f.t, err)
			found[letter.ID] = true
		}
		return len(found) >= want
	})
}

func (o *outage) eventually(what string, is func() bool) {
	o.f.t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(50 * time.Millisecond) {
		require.True(o.f.t, time.Now().Before(deadline), "within %v: %s", patience, what)
	}
}

// redrive: looking at dead letters removes none. A redrive sends those that are selected to the handler that failed, and no other. What
// dies meanwhile is left for the next one.
func redrive(t *testing.T, f *fixture) {
	o := f.outage()
	store := o.open()
	if store == nil {
		return
	}
	evens, odds := split(ids(200))
	app := f.run(o.app, o.topics, o.handle)
	o.kill(store, ids(200))

	first, gotEvens, gotOdds := o.browse(store, letters.Filter{})
	second, _, _ := o.browse(store, letters.Filter{})
	assert.Equal(t, first, second)
	assert.Equal(t, evens, gotEvens)
	assert.Equal(t, odds, gotOdds)
	stock, none, gotOdds := o.browse(store, ofStock)
	assert.Empty(t, none)
	assert.Equal(t, odds, gotOdds)
	for _, letter := range first {
		was := o.first(letter.ID)
		assert.Equal(t, string(was.Payload), string(letter.Payload))
		assert.Equal(t, letters.Library, letter.Kind)
		assert.Equal(t, retry.DeadReasonPermanent, letter.Record.DeadReason)
		assert.NotEmpty(t, letter.Target)
	}
	if f.Expect.Letters == registry.BrowseLetters {
		o.refuses(store)
		return
	}

	// Their handler fails still, so each of them dies again. A call on the same topic is refused meanwhile.
	refused := make(chan error, 1)
	again, err := store.Redrive(noContext, o.queue, letters.Redrive{Filter: ofOutage, By: "ann", Progress: func(letters.Progress) {
		if len(refused) == 0 {
			_, err := store.Discard(noContext, o.queue, letters.Discard{})
			refused <- err
		}
	}})
	require.NoError(t, err)
	require.ErrorIs(t, <-refused, letters.ErrBusy)
	total := len(first)
	assert.Equal(t, letters.Summary{Total: total, Done: total - len(stock), Other: len(stock), Redead: again.Redead}, again)
	o.eventually("they are dead again", func() bool {
		_, gotEvens, _ := o.browse(store, letters.Filter{})
		return len(gotEvens) == len(evens)
	})
	left, _, gotOdds := o.browse(store, letters.Filter{})
	assert.Equal(t, odds, gotOdds)
	for _, letter := range left {
		want := letters.Redriven{}
		if !isOdd(letter.ID) {
			want.Times = 1
		}
		assert.Equal(t, want.Times, letter.Redriven.Times, letter.ID)
		assert.Equal(t, 1, letter.Record.Failures, "the count began anew")
		assert.Equal(t, "order "+letter.ID, string(letter.Payload))
	}

	o.recover()
	done, err := store.Redrive(noContext, o.queue, letters.Redrive{Filter: ofStock, Limit: 30})
	require.NoError(t, err)
	assert.Equal(t, 30, done.Done)
	rest, err := store.Redrive(noContext, o.queue, letters.Redrive{Filter: ofStock})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: rest.Total, Done: len(stock) - 30, Other: rest.Total - len(stock) + 30}, rest)
	o.eventually("they are handled", func() bool { handled, _ := o.handled(); return len(handled) == len(odds) })
	handled, calls := o.handled()
	assert.Equal(t, odds, handled)
	f.score.add(0, calls-len(handled))
	for _, id := range handled {
		got := o.first(id)
		assert.Equal(t, "order "+id, string(got.Payload))
		_, recorded := retry.ReadRecord(got.Metadata)
		assert.False(t, recorded)
		history, _ := letters.ReadRedriven(got.Metadata)
		assert.Equal(t, 1, history.Times)
	}

	_, gotEvens, none = o.browse(store, letters.Filter{})
	assert.Equal(t, evens, gotEvens)
	assert.Empty(t, none)
	_, err = store.Discard(noContext, o.queue, letters.Discard{Filter: letters.Filter{IDs: evens[:5]}})
	require.NoError(t, err)
	_, gotEvens, _ = o.browse(store, letters.Filter{})
	assert.Equal(t, evens[5:], gotEvens)

	o.recover()
	to := o.topics[0]
	if queue, isQueue := strings.CutSuffix(o.queue, ".dead"); isQueue { // RabbitMQ
		to = queue
	}
	moved, err := store.Redrive(noContext, o.queue, letters.Redrive{To: to, Filter: letters.Filter{IDs: evens[5:10]}})
	require.NoError(t, err)
	assert.GreaterOrEqual(t, moved.Done, 5)
	o.eventually("they are handled", func() bool { handled, _ := o.handled(); return len(handled) == 5 })
	app.stop()
}

// redriveOdd: the handler gets the same bytes again.
func redriveOdd(t *testing.T, f *fixture) {
	o := f.outage()
	store := o.open()
	if store == nil || f.Expect.Letters == registry.BrowseLetters {
		return
	}
	f.run(o.app, o.topics, o.handle)
	publisher, err := f.backend.Publisher()
	require.NoError(t, err)
	sent := odd()
	for _, msg := range sent {
		require.NoError(t, publisher.Publish(o.topics[0], msg.Copy()))
	}
	require.NoError(t, publisher.Close())
	o.awaitLetters(store, len(sent))
	first := map[string]*message.Message{}
	for id := range sent {
		first[id] = o.first(id)
	}
	found, _, _ := o.browse(store, letters.Filter{})
	for _, letter := range found {
		assert.Equal(t, string(first[letter.ID].Payload), string(letter.Payload), letter.ID)
		assert.Equal(t, bare(first[letter.ID].Metadata), bare(letter.Metadata), letter.ID)
	}
	o.recover()
	summary, err := store.Redrive(noContext, o.queue, letters.Redrive{})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: summary.Total, Done: summary.Total}, summary)
	o.eventually("they are handled", func() bool { handled, _ := o.handled(); return len(handled) == len(sent) })
	for id := range sent {
		assert.Equal(t, string(first[id].Payload), string(o.first(id).Payload), id)
		assert.Equal(t, bare(first[id].Metadata), bare(o.first(id).Metadata), id)
	}
}

// refuses: a backend that can only look at its letters changes none.
func (o *outage) refuses(store letters.Store) {
	before, _, _ := o.browse(store, letters.Filter{})
	stock, _, _ := o.browse(store, ofStock)
	_, err := store.Redrive(noContext, o.queue, letters.Redrive{})
	require.ErrorIs(o.f.t, err, backends.ErrNoLetters)
	_, err = store.Discard(noContext, o.queue, letters.Discard{})
	require.ErrorIs(o.f.t, err, backends.ErrNoLetters)
	dry, err := store.Redrive(noContext, o.queue, letters.Redrive{Filter: ofStock, DryRun: true})
	require.NoError(o.f.t, err)
	assert.Equal(o.f.t, letters.Summary{Total: len(before), Done: len(stock), Other: len(before) - len(stock)}, dry)
	after, _, _ := o.browse(store, letters.Filter{})
	assert.Equal(o.f.t, before, after)
}

// crashOfRedrive: processes that redrive die before and after a publish. No letter is lost, and each process causes one duplicate at most.
func crashOfRedrive(t *testing.T, f *fixture) {
	if strings.HasPrefix(f.Name, "rabbitmq") {
		return // its store has tests of its own, with the letters in flight there
	}
	o := f.outage()
	store := o.open()
	if store == nil || f.Expect.Letters == registry.BrowseLetters {
		return
	}
	all := ids(40)
	f.run(o.app, o.topics, o.handle)
	o.kill(store, all)
	before, _, _ := o.browse(store, letters.Filter{})
	o.recover()
	victims := []victim{{Nth: 1}, {Nth: 5, Before: true}, {Nth: 7}}
	for _, v := range victims {
		v.Backend, v.URL, v.Group, v.Prefix, v.Redrive = f.Name, f.url, o.app.Group, o.app.Prefix, o.queue
		f.die(v)
	}
	left, _, _ := o.browse(store, letters.Filter{})
	assert.Len(t, left, len(before)-10, "those of the 13 publishes that were not the last of their process")
	var summary letters.Summary
	o.eventually("the lock of a dead process ends", func() (free bool) {
		var err error
		summary, err = store.Redrive(noContext, o.queue, letters.Redrive{})
		if errors.Is(err, letters.ErrBusy) {
			return false
		}
		require.NoError(t, err)
		return true
	})
	assert.Equal(t, letters.Summary{Total: len(left), Done: len(left)}, summary)
	o.eventually("all are handled", func() bool { handled, _ := o.handled(); return len(handled) == len(all) })
	left, _, _ = o.browse(store, letters.Filter{})
	assert.Empty(t, left)
	_, calls := o.handled()
	f.score.add(0, calls-len(all))
}

// redriveAll is what a victim does.
func redriveAll(backend backends.Backend, app backends.App, queue string) {
	store, err := backend.Letters(app)
	for err == nil {
		if _, err = store.Redrive(noContext, queue, letters.Redrive{}); errors.Is(err, letters.ErrBusy) {
			time.Sleep(100 * time.Millisecond) // the process before has died with the lock
			err = nil
		}
	}
	panic(err)
}

package conformance

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/process"
	"github.com/tieredretry/watermill-retry/backends/conformance/pubsub"
	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
)

var (
	errStock = errors.New("no stock")
	ofStock  = letters.Filter{Reason: regexp.MustCompile(`^no stock$`)}
	ofOutage = letters.Filter{Reason: regexp.MustCompile(`^the service is down$`)}
)

// outage is an app whose messages die at once: those with an even number of errDown, the others of errStock.
type outage struct {
	f      *fixture
	app    pubsub.App
	topics []string
	queue  string // of its dead letters

	healthy atomic.Bool
	seen    *ledger // the calls since it became healthy
}

func (f *fixture) outage() *outage {
	o := &outage{f: f, topics: f.topics(1), app: f.app(500 * time.Millisecond), seen: f.ledger}
	o.app.Lease = time.Minute // a slow machine must not cause duplicates: a letter of each would come
	o.queue = f.backend.DeadTopic(o.app, o.topics[0])
	return o
}

func (o *outage) handle(msg *message.Message) error {
	o.seen.add(msg)
	switch {
	case o.healthy.Load():
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
	o.healthy.Store(true)
	o.seen.forget()
}

// open connects to the dead letters.
func (o *outage) open() letters.Store {
	o.f.t.Helper()
	store, err := o.f.backend.Letters(o.app)
	require.NoError(o.f.t, err)
	o.f.t.Cleanup(func() { require.NoError(o.f.t, store.Close()) })
	return store
}

// browse returns the letters, and the IDs of those with an even number and of the others. Delivery is at least once: a
// message can die twice, and then has two letters.
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
	o.f.eventually("all are dead", func() bool {
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

// redrive: looking at dead letters removes none. A redrive sends those that are selected to the handler that failed, and
// no other call touches them meanwhile. What dies again is a letter again, with its history.
func redrive(t *testing.T, f *fixture) {
	o := f.outage()
	if f.Name == "kafka" { // its letters are in several partitions
		kafkaOn(t, strings.Split(f.url, ",")).make(o.queue, 3)
	}
	store := o.open()
	all := ids(200)
	evens, odds := split(all)
	f.run(o.app, o.topics, o.handle)
	o.kill(store, all)

	first, gotEvens, gotOdds := o.browse(store, letters.Filter{})
	second, _, _ := o.browse(store, letters.Filter{})
	assert.Equal(t, first, second)
	assert.Equal(t, evens, gotEvens)
	assert.Equal(t, odds, gotOdds)
	stock, none, gotOdds := o.browse(store, ofStock)
	assert.Empty(t, none)
	assert.Equal(t, odds, gotOdds)
	for _, letter := range first {
		assert.Equal(t, letters.Library, letter.Kind)
		assert.NotEmpty(t, letter.Target)
	}
	if f.Expect.Letters == registry.BrowseLetters {
		o.refuses(store)
		o.recover()
		o.redriveByHand(len(all))
		o.awaitHandled(all)
		return
	}

	// Their handler fails still, so each of them dies again. A call on the same topic is refused meanwhile.
	refused := make(chan error, 1)
	discard := func(letters.Progress) {
		if len(refused) == 0 {
			_, err := store.Discard(noContext, o.queue, letters.Discard{})
			refused <- err
		}
	}
	again, err := store.Redrive(noContext, o.queue, letters.Redrive{Filter: ofOutage, By: "ann", Progress: discard})
	require.NoError(t, err)
	require.ErrorIs(t, <-refused, letters.ErrBusy)
	total := len(first)
	assert.Equal(t, letters.Summary{
		Total: total, Done: total - len(stock), Other: len(stock), Redead: again.Redead,
	}, again)
	f.eventually("they are dead again", func() bool {
		_, gotEvens, _ := o.browse(store, letters.Filter{})
		return len(gotEvens) == len(evens)
	})
	left, _, gotOdds := o.browse(store, letters.Filter{})
	assert.Equal(t, odds, gotOdds)
	for _, letter := range left {
		times := 1
		if isOdd(letter.ID) {
			times = 0
		}
		assert.Equal(t, times, letter.Redriven.Times, letter.ID)
		assert.Equal(t, 1, letter.Record.Failures, "the count began anew")
	}

	o.recover()
	done, err := store.Redrive(noContext, o.queue, letters.Redrive{Filter: ofStock})
	require.NoError(t, err)
	assert.Equal(t, len(stock), done.Done)
	o.awaitHandled(odds)
	_, err = store.Discard(noContext, o.queue, letters.Discard{Filter: letters.Filter{IDs: evens[:5]}})
	require.NoError(t, err)
	_, gotEvens, none = o.browse(store, letters.Filter{})
	assert.Equal(t, evens[5:], gotEvens)
	assert.Empty(t, none)
}

// awaitHandled waits until these messages, and no others, are handled.
func (o *outage) awaitHandled(want []string) {
	o.f.t.Helper()
	o.f.eventually("they are handled", func() bool { return len(o.seen.handled()) >= len(want) })
	assert.Equal(o.f.t, want, o.seen.handled())
}

// redriveByHand is the redrive of docs/other-pubsubs.md on Kafka.
func (o *outage) redriveByHand(n int) {
	t := o.f.t
	t.Helper()
	client := kafka.DefaultSaramaSubscriberConfig()
	client.Version, client.Consumer.Offsets.Initial = sarama.V2_2_0_0, sarama.OffsetOldest
	subscriber, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: strings.Split(o.f.url, ","), ConsumerGroup: "redrive", OverwriteSaramaConfig: client,
	}, process.Logger())
	require.NoError(t, err)
	defer func() { require.NoError(t, subscriber.Close()) }()
	publisher, err := o.f.backend.Publisher()
	require.NoError(t, err)
	defer func() { require.NoError(t, publisher.Close()) }()
	in, err := subscriber.Subscribe(t.Context(), o.queue)
	require.NoError(t, err)
	for sent := map[string]bool{}; len(sent) < n; {
		letter := wait.For(t, in, "there is a letter")
		require.NoError(t, publisher.Publish(strings.Replace(o.queue, ".dead.", ".return.", 1), letters.Fresh(letter)))
		letter.Ack()
		sent[letter.UUID] = true
	}
}

// refuses: a backend that can only look at its letters changes none.
func (o *outage) refuses(store letters.Store) {
	before, _, _ := o.browse(store, letters.Filter{})
	stock, _, _ := o.browse(store, ofStock)
	_, err := store.Redrive(noContext, o.queue, letters.Redrive{})
	require.ErrorIs(o.f.t, err, errors.ErrUnsupported)
	_, err = store.Discard(noContext, o.queue, letters.Discard{})
	require.ErrorIs(o.f.t, err, errors.ErrUnsupported)
	dry, err := store.Redrive(noContext, o.queue, letters.Redrive{Filter: ofStock, DryRun: true})
	require.NoError(o.f.t, err)
	assert.Equal(o.f.t, letters.Summary{Total: len(before), Done: len(stock), Other: len(before) - len(stock)}, dry)
	after, _, _ := o.browse(store, letters.Filter{})
	assert.Equal(o.f.t, before, after)
}

// crashOfRedrive: processes that redrive are killed. No letter is lost, and each process causes one duplicate at most.
func crashOfRedrive(t *testing.T, f *fixture) {
	if f.Expect.Tiers || f.Expect.Letters == registry.BrowseLetters {
		return // RabbitMQ's store has tests of its own, with the letters in flight there
	}
	o := f.outage()
	o.app.Lease = 5 * time.Second // of the lock
	store := o.open()
	all := ids(60)
	f.run(o.app, o.topics, o.handle)
	o.kill(store, all)
	before, _, _ := o.browse(store, letters.Filter{})
	o.recover()
	role := f.role(o.app, nil, "", 0)
	role.Redrive = o.queue
	const victims = 2
	for i := range victims {
		victim := f.start(newLedger(), role)[0]
		f.eventually("some are handled", func() bool { return len(o.seen.handled()) >= 15*(i+1) })
		victim.Kill()
	}
	var summary letters.Summary
	f.eventually("the lock of a dead process ends", func() (free bool) {
		var err error
		summary, err = store.Redrive(noContext, o.queue, letters.Redrive{})
		return !errors.Is(err, letters.ErrBusy) && assert.NoError(t, err)
	})
	assert.Less(t, summary.Done, len(before), "the victims have sent some")
	o.awaitHandled(all)
	left, _, _ := o.browse(store, letters.Filter{})
	assert.Empty(t, left)
	calls := 0
	for _, tries := range o.seen.all() {
		calls += len(tries)
	}
	assert.LessOrEqual(t, calls-len(before), victims, "duplicates")
}

package relayletters_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	poison "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/relayletters"
	"github.com/tieredretry/watermill-retry/retry"
)

func browse(t *testing.T, store letters.Store, topic string, filter letters.Filter) (found []*letters.Letter) {
	t.Helper()
	for letter, err := range store.Browse(t.Context(), topic, filter) {
		require.NoError(t, err)
		found = append(found, letter)
	}
	return found
}

func idsOf(found []*letters.Letter) []string {
	ids := []string{}
	for _, letter := range found {
		ids = append(ids, letter.ID)
	}
	return ids
}

func numbers(from, to, step int) []string {
	ids := []string{}
	for i := from; i < to; i += step {
		ids = append(ids, fmt.Sprintf("%03d", i))
	}
	return ids
}

var ofNetwork = letters.Filter{ErrorType: "*net.OpError"}

func TestLettersBrowse(t *testing.T) {
	t.Parallel()
	s := newShelf()
	store := s.letters(t)
	s.dead(t, 0, 250)
	for range 3 {
		assert.Equal(t, numbers(0, 250, 1), idsOf(browse(t, store, deadTopic, letters.Filter{})))
	}
	assert.Equal(t, numbers(1, 250, 2), idsOf(browse(t, store, deadTopic, ofNetwork)))
	seen := 0
	for range store.Browse(t.Context(), deadTopic, letters.Filter{}) { // ends early, and what dies meanwhile is not part of the loop
		s.dead(t, 900, 1000)
		if seen++; seen == 3 {
			break
		}
	}
	assert.Len(t, s.ids(deadTopic), 550)
	seen = 0
	for range store.Browse(t.Context(), deadTopic, letters.Filter{}) {
		s.dead(t, 900, 901)
		seen++
	}
	assert.Equal(t, 550, seen)

	topic := store.TopicOf("billing", "")
	assert.Equal(t, deadTopic, topic)
}

func TestLettersAreDescribed(t *testing.T) {
	t.Parallel()
	s := newShelf()
	store := s.letters(t)
	s.dead(t, 7, 8)
	poisoned := orderOf("poisoned")
	poisoned.Metadata[poison.PoisonedTopicKey], poisoned.Metadata[poison.PoisonedHandlerKey] = "orders", "billing"
	poisoned.Metadata[poison.ReasonForPoisonedKey] = "no stock"
	garbled := orderOf("garbled")
	retry.Record{Failures: 3, Topic: "orders", Handler: "billing", Reason: "no", DeadReason: retry.DeadReasonExhausted}.Write(garbled.Metadata)
	garbled.Metadata[recordkey.Failures] = "many"
	require.NoError(t, s.Publish(deadTopic, poisoned, message.NewMessage("", []byte("x")), garbled))
	found := browse(t, store, deadTopic, letters.Filter{})
	require.Len(t, found, 4)

	own := message.Metadata{"trace": "abc", "odd": "\xff\x00"}
	assert.Equal(t, &letters.Letter{
		ID: "007", Queue: deadTopic, Target: "retry.return.billing", Kind: letters.Library, Metadata: own, Payload: []byte{0, 0xff, 'o'},
		Record: retry.Record{
			Failures: 3, Topic: "orders", Handler: "billing", Reason: "no 7", ErrorType: "*net.OpError", DeadReason: retry.DeadReasonExhausted,
			Subscriber: "gochannel.GoChannel",
		},
	}, found[0])
	assert.Equal(t, &letters.Letter{
		ID: "poisoned", Queue: deadTopic, Kind: letters.Poison, Metadata: own, Payload: []byte{0, 0xff, 'o'},
		Record: retry.Record{Topic: "orders", Handler: "billing", Reason: "no stock"},
	}, found[1])
	assert.Equal(t, letters.Unknown, found[2].Kind)
	assert.Regexp(t, "^#[0-9a-f]{16}$", found[2].ID)
	assert.Empty(t, found[2].Target)
	assert.Equal(t, &letters.Letter{
		ID: "garbled", Queue: deadTopic, Target: "retry.return.billing", Kind: letters.Library, Metadata: own, Payload: []byte{0, 0xff, 'o'},
		Record: retry.Record{Topic: "orders", Handler: "billing", Reason: "no", DeadReason: retry.DeadReasonExhausted},
	}, found[3])
}

// TestLettersComeBack: a letter is handled as a new message with a history, and only by the handler that failed.
func TestLettersComeBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShelf()
		var mu sync.Mutex
		var got []*message.Message
		broken := true
		handled := func() []*message.Message {
			mu.Lock()
			defer mu.Unlock()
			return got
		}
		stop := shelfApp(t, s, backoff.Schedule{time.Second, 5 * time.Second}, func(msg *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, msg.Copy())
			if broken {
				return errDown
			}
			return nil
		})
		store := s.letters(t)
		require.NoError(t, s.Publish("orders", orderOf("1")))
		time.Sleep(7 * time.Second)
		synctest.Wait()
		require.Len(t, handled(), 3)
		require.Equal(t, []string{"1"}, s.ids(deadTopic))

		mu.Lock()
		broken = false
		mu.Unlock()
		dead := s.kept[deadTopic][0].Message
		record, _ := retry.ReadRecord(dead.Metadata)
		record.Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		record.Write(dead.Metadata)
		began := time.Now()
		summary, err := store.Redrive(t.Context(), deadTopic, letters.Redrive{By: "ann@desk", Note: "mended"})
		require.NoError(t, err)
		assert.Equal(t, letters.Summary{Total: 1, Done: 1}, summary)
		synctest.Wait()
		require.Len(t, handled(), 4)
		msg, want := handled()[3], orderOf("1")
		assert.Equal(t, want.UUID, msg.UUID)
		assert.Equal(t, want.Payload, msg.Payload)
		history, found := letters.ReadRedriven(msg.Metadata)
		require.True(t, found)
		assert.NotEmpty(t, history.Redrives[0].Run)
		history.Redrives[0].Run = ""
		assert.Equal(t, letters.Redriven{Times: 1, Redrives: []letters.PastRedrive{{
			At: began.UTC().Truncate(time.Millisecond), By: "ann@desk", Note: "mended", Failures: 3,
			FailedAt:   record.FirstFailedAt.UTC().Truncate(time.Millisecond),
			DeadReason: retry.DeadReasonExhausted, Reason: errDown.Error(),
		}}}, history)
		want.Metadata[letters.RedrivenKey] = msg.Metadata[letters.RedrivenKey]
		want.Metadata[recordkey.Traceparent] = record.Traceparent
		assert.Equal(t, want.Metadata, msg.Metadata, "without a record but the trace: the retries begin anew")
		assert.Empty(t, browse(t, store, deadTopic, letters.Filter{}))
		stop()
		require.NoError(t, store.Close())
		assert.Equal(t, 2, s.closed, "publisher and topics")
	})
}

// sent is a publisher that keeps the UUIDs that it published.
type sent struct {
	message.Publisher
	uuids []string
	at    []time.Time
	fail  func(*message.Message) error
}

func (p *sent) Publish(_ string, messages ...*message.Message) error {
	for _, msg := range messages {
		if p.fail != nil {
			if err := p.fail(msg); err != nil {
				return err
			}
		}
		p.uuids, p.at = append(p.uuids, msg.UUID), append(p.at, time.Now())
	}
	return nil
}

func (p *sent) Close() error { return nil }

// sending returns a store with letters from 0 to n, whose target has a handler.
func sending(t *testing.T, n int) (*shelf, *sent, *relayletters.Store) {
	t.Helper()
	s, p := newShelf(), &sent{}
	s.dead(t, 0, n)
	s.handlers["retry.return.billing"] = true
	return s, p, s.letters(t, func(c *relayletters.Config) { c.Publisher = p })
}

func TestLettersRedriveSelects(t *testing.T) {
	t.Parallel()
	s, p, store := sending(t, 300)
	s.read = func() { s.dead(t, 900, 910) } // dies meanwhile
	for _, test := range []struct {
		options letters.Redrive
		want    letters.Summary
	}{
		{letters.Redrive{Filter: ofNetwork, DryRun: true}, letters.Summary{Total: 300, Done: 150, Other: 150}},
		{letters.Redrive{Filter: ofNetwork, DryRun: true, Limit: 40}, letters.Summary{Total: 300, Done: 40, Other: 40, Unseen: 220}},
		{letters.Redrive{Filter: ofNetwork, Limit: 50}, letters.Summary{Total: 300, Done: 50, Other: 50, Unseen: 200}},
		{letters.Redrive{Filter: ofNetwork}, letters.Summary{Total: 250, Done: 100, Other: 150}},
		{letters.Redrive{Filter: ofNetwork}, letters.Summary{Total: 150, Other: 150}},
	} {
		s.mu.Lock()
		s.kept[deadTopic] = s.kept[deadTopic][:test.want.Total]
		s.mu.Unlock()
		summary, err := store.Redrive(t.Context(), deadTopic, test.options)
		require.NoError(t, err)
		assert.Equal(t, test.want, summary)
	}
	assert.Equal(t, numbers(1, 300, 2), p.uuids)
	assert.Equal(t, numbers(0, 300, 2), s.ids(deadTopic)[:150])
}

func TestLettersDiscard(t *testing.T) {
	t.Parallel()
	s, p, store := sending(t, 10)
	summary, err := store.Discard(t.Context(), deadTopic, letters.Discard{Filter: ofNetwork, DryRun: true})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: 10, Done: 5, Other: 5}, summary)
	assert.Len(t, s.ids(deadTopic), 10)
	summary, err = store.Discard(t.Context(), deadTopic, letters.Discard{Filter: ofNetwork, Limit: 3})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: 10, Done: 3, Other: 3, Unseen: 4}, summary)
	assert.Equal(t, []string{"000", "002", "004", "006", "007", "008", "009"}, s.ids(deadTopic))
	assert.Empty(t, p.uuids)
}

func TestLettersWithoutTarget(t *testing.T) {
	t.Parallel()
	s, p, store := sending(t, 2)
	s.handlers["orders"] = true
	require.NoError(t, s.Publish(deadTopic, message.NewMessage("foreign", nil)))
	for _, dry := range []bool{true, false} {
		summary, err := store.Redrive(t.Context(), deadTopic, letters.Redrive{DryRun: dry})
		require.ErrorIs(t, err, letters.ErrNoTarget)
		require.ErrorContains(t, err, `letter "foreign"`)
		assert.Equal(t, letters.Summary{Total: 3, Done: 2, Kept: 1}, summary)
	}
	assert.Equal(t, []string{"foreign"}, s.ids(deadTopic))
	_, err := store.Redrive(t.Context(), deadTopic, letters.Redrive{To: "orders"})
	require.NoError(t, err)
	assert.Empty(t, s.ids(deadTopic))
	assert.Equal(t, []string{"000", "001", "foreign"}, p.uuids)

	s.dead(t, 0, 2)
	_, err = store.Redrive(t.Context(), deadTopic, letters.Redrive{To: "ordres"})
	require.ErrorIs(t, err, letters.ErrNoTarget)
	require.ErrorContains(t, err, `Redrive.To is "ordres", a topic to which no handler has subscribed`)
	s.handlers["retry.return.billing"] = false
	summary, err := store.Redrive(t.Context(), deadTopic, letters.Redrive{})
	require.ErrorIs(t, err, letters.ErrNoTarget)
	require.ErrorContains(t, err, `topic "retry.return.billing"`)
	assert.Equal(t, letters.Summary{Total: 2, Kept: 2}, summary)
	assert.Equal(t, []string{"000", "001"}, s.ids(deadTopic))
	summary, err = store.Redrive(t.Context(), deadTopic, letters.Redrive{To: "orders"})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: 2, Done: 2}, summary, "To is in place of their target")
}

func TestLettersRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, p, store := sending(t, 30)
		began := time.Now()
		var progress []letters.Progress
		summary, err := store.Redrive(t.Context(), deadTopic, letters.Redrive{Rate: 5, Progress: func(p letters.Progress) { progress = append(progress, p) }})
		require.NoError(t, err)
		assert.Equal(t, letters.Summary{Total: 30, Done: 30}, summary)
		for i, at := range p.at {
			assert.Equal(t, time.Duration(i)*200*time.Millisecond, at.Sub(began))
		}
		last := progress[len(progress)-1]
		assert.Equal(t, letters.Progress{Summary: summary, Phase: letters.Ended, Elapsed: 29 * 200 * time.Millisecond}, last)
		for i, p := range progress {
			assert.Equal(t, 30, p.Done+p.Other+p.Kept+p.Unseen)
			if i > 0 && p.Phase != letters.Ended {
				assert.GreaterOrEqual(t, p.Elapsed-progress[i-1].Elapsed, 100*time.Millisecond)
			}
		}
	})
}

// A redrive that ends between the publish and the removal is repeated: for an inbox both are the same message.
func TestAgainOfALetterThatStays(t *testing.T) {
	t.Parallel()
	s, p, store := sending(t, 1)
	var again []string
	p.fail = func(msg *message.Message) error {
		history, found := letters.ReadRedriven(msg.Metadata)
		assert.True(t, found)
		again = append(again, history.Again)
		return nil
	}
	s.removing = errors.New("killed")
	_, err := store.Redrive(t.Context(), deadTopic, letters.Redrive{Again: true})
	require.ErrorContains(t, err, "another redrive publishes it again")
	s.removing = nil
	_, err = store.Redrive(t.Context(), deadTopic, letters.Redrive{Again: true})
	require.NoError(t, err)
	require.Len(t, again, 2)
	assert.NotEmpty(t, again[0])
	assert.Equal(t, again[0], again[1])
}

// TestLettersFailures: whatever fails, no letter is lost and the summary adds up.
func TestLettersFailures(t *testing.T) {
	t.Parallel()
	down := errors.New("the backend is down")
	stay := func(s *shelf, n int) {
		t.Helper()
		assert.Equal(t, numbers(10-n, 10, 1), s.ids(deadTopic))
	}
	s, p, store := sending(t, 10)
	p.fail = func(msg *message.Message) error {
		if msg.UUID == "004" {
			return down
		}
		return nil
	}
	summary, err := store.Redrive(t.Context(), deadTopic, letters.Redrive{})
	require.ErrorIs(t, err, down)
	assert.Equal(t, letters.Summary{Total: 10, Done: 4, Kept: 1, Unseen: 5, Doubtful: 1}, summary)
	stay(s, 6)

	p.fail = func(*message.Message) error { panic("closed") }
	_, err = store.Redrive(t.Context(), deadTopic, letters.Redrive{})
	require.ErrorContains(t, err, "closed")
	stay(s, 6)

	p.fail, s.removing = nil, down
	summary, err = store.Redrive(t.Context(), deadTopic, letters.Redrive{})
	require.ErrorIs(t, err, down)
	require.ErrorContains(t, err, "another redrive publishes it again")
	assert.Equal(t, letters.Summary{Total: 6, Kept: 1, Unseen: 5, Doubtful: 1}, summary)
	_, err = store.Discard(t.Context(), deadTopic, letters.Discard{})
	require.ErrorIs(t, err, down)
	stay(s, 6)

	s.removing = nil
	ctx, cancel := context.WithCancel(t.Context())
	p.fail = func(*message.Message) error {
		cancel() // the letter in flight is finished
		return nil
	}
	summary, err = store.Redrive(ctx, deadTopic, letters.Redrive{})
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, letters.Summary{Total: 6, Done: 1, Unseen: 5}, summary)
	stay(s, 5)
	for _, err := range store.Browse(ctx, deadTopic, letters.Filter{}) {
		require.ErrorIs(t, err, context.Canceled)
	}

	p.fail = func(*message.Message) error {
		s.lose(errors.New("the lease is over"))
		return nil
	}
	summary, err = store.Redrive(t.Context(), deadTopic, letters.Redrive{})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "the lease is over")
	assert.Equal(t, letters.Summary{Total: 5, Done: 1, Unseen: 4}, summary)

	p.fail = func(*message.Message) error {
		_, err := store.Discard(t.Context(), deadTopic, letters.Discard{})
		assert.ErrorIs(t, err, letters.ErrBusy)
		_, err = store.Redrive(t.Context(), deadTopic, letters.Redrive{DryRun: true})
		assert.NoError(t, err)
		return nil
	}
	_, err = store.Redrive(t.Context(), deadTopic, letters.Redrive{})
	require.NoError(t, err)
	p.fail = nil
	_, err = store.Redrive(t.Context(), "retry.dead.other", letters.Redrive{})
	require.ErrorIs(t, err, letters.ErrNoQueue)
	for _, err := range store.Browse(t.Context(), "retry.dead.other", letters.Filter{}) {
		require.ErrorIs(t, err, letters.ErrNoQueue)
	}
	for _, err := range store.Browse(t.Context(), deadTopic, letters.Filter{OlderThan: -1}) {
		require.ErrorContains(t, err, "OlderThan")
	}
	_, err = store.Redrive(t.Context(), deadTopic, letters.Redrive{Limit: -1})
	require.ErrorContains(t, err, "Limit")
	_, err = store.Discard(t.Context(), deadTopic, letters.Discard{Limit: -1})
	require.ErrorContains(t, err, "Limit")
}

// TestAReaderThatFailsHalfway: what it has found is shown, and then its error.
func TestAReaderThatFailsHalfway(t *testing.T) {
	t.Parallel()
	s := newShelf()
	store := s.letters(t)
	s.dead(t, 0, 3)
	reset := errors.New("the connection is reset")
	s.reading = reset
	var found []*letters.Letter
	var failed []error
	for letter, err := range store.Browse(t.Context(), deadTopic, letters.Filter{}) {
		if failed = append(failed, err); err == nil {
			found = append(found, letter)
		}
	}
	assert.Equal(t, numbers(0, 3, 1), idsOf(found))
	assert.Equal(t, []error{nil, nil, nil, reset}, failed)
}

func TestLettersClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, p, store := sending(t, 10)
		ended := make(chan error, 1)
		go func() {
			_, err := store.Redrive(t.Context(), deadTopic, letters.Redrive{Rate: 1})
			ended <- err
		}()
		time.Sleep(2500 * time.Millisecond)
		require.NoError(t, store.Close())
		require.ErrorIs(t, <-ended, letters.ErrClosed)
		require.NoError(t, store.Close())
		assert.Len(t, p.uuids, 3)
		assert.Equal(t, 1, s.closed)
		_, err := store.Redrive(t.Context(), deadTopic, letters.Redrive{})
		require.ErrorIs(t, err, letters.ErrClosed)
		_, err = store.Discard(t.Context(), deadTopic, letters.Discard{})
		require.ErrorIs(t, err, letters.ErrClosed)
		for _, err := range store.Browse(t.Context(), deadTopic, letters.Filter{}) {
			require.ErrorIs(t, err, letters.ErrClosed)
		}
	})
}

// TestLettersThatDieAgain: a redrive sends the canary, waits, and goes on only if none of it dies. It stops beyond MaxRedead.
func TestLettersThatDieAgain(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		options letters.Redrive
		broken  func(n int) bool // of the n-th call of the handler
		want    letters.Summary
		err     error
	}{
		{"good canary", letters.Redrive{Canary: 10}, func(int) bool { return false }, letters.Summary{Total: 200, Done: 200}, nil},
		{"dead canary", letters.Redrive{Canary: 10}, func(n int) bool { return n == 4 }, letters.Summary{Total: 200, Done: 10, Unseen: 190, Redead: 1}, letters.ErrRedead},
		{"of a filter", letters.Redrive{Canary: 10, Filter: ofNetwork}, func(n int) bool { return n == 4 }, letters.Summary{Total: 200, Done: 10, Other: 10, Unseen: 180, Redead: 1}, letters.ErrRedead},
		{"few letters", letters.Redrive{Canary: 10, Limit: 2}, func(n int) bool { return n == 1 }, letters.Summary{Total: 200, Done: 2, Unseen: 198, Redead: 1}, letters.ErrRedead},
		{"long wait", letters.Redrive{Canary: 1, CanaryWait: time.Hour}, func(n int) bool { return n > 1 }, letters.Summary{Total: 200, Done: 200}, nil},
		{"below the share", letters.Redrive{Rate: 10, MaxRedead: 0.2}, func(n int) bool { return n%10 == 0 }, letters.Summary{Total: 200, Done: 200}, nil},
		{"above the share", letters.Redrive{Rate: 10, MaxRedead: 0.2}, func(n int) bool { return n > 100 }, letters.Summary{}, letters.ErrRedead},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newShelf()
				s.dead(t, 0, 200)
				n := 0
				var mu sync.Mutex
				stop := shelfApp(t, s, backoff.Schedule{time.Hour}, func(*message.Message) error {
					mu.Lock()
					defer mu.Unlock()
					if n++; test.broken(n) {
						return backoff.Permanent(errDown)
					}
					return nil
				})
				store := s.letters(t)
				watched := time.Duration(0)
				test.options.Progress = func(p letters.Progress) {
					if p.Phase == letters.Watching {
						watched = max(watched, time.Until(p.Until))
					}
				}
				summary, err := store.Redrive(t.Context(), deadTopic, test.options)
				synctest.Wait()
				require.ErrorIs(t, err, test.err)
				switch {
				case test.name == "above the share":
					assert.Greater(t, summary.Redead, summary.Done/5)
					assert.Less(t, summary.Done, 140)
					assert.Equal(t, 200, summary.Done+summary.Unseen)
				case test.options.MaxRedead > 0:
					assert.InDelta(t, 20, summary.Redead, 1)
					summary.Redead = 0
					fallthrough
				default:
					if test.err == nil {
						summary.Redead, test.want.CanaryUnknown = 0, test.options.Canary > 0 // a shelf cannot look
					}
					assert.Equal(t, test.want, summary)
				}
				if test.options.Canary > 0 {
					assert.Equal(t, max(test.options.CanaryWait, 10*time.Second), watched)
				}
				stop()
			})
		})
	}
}

func TestLettersConfigIsValidated(t *testing.T) {
	t.Parallel()
	_, err := relayletters.Open(relayletters.Config{})
	require.ErrorContains(t, err, "Publisher is nil")
	require.ErrorContains(t, err, "Reader is nil")
	store := newShelf().letters(t, func(c *relayletters.Config) { c.Prefix = "later" })
	assert.Equal(t, "later.dead.billing.orders", store.TopicOf("billing", "orders"))
}

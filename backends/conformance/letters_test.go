package conformance

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

func everyByte() string {
	var b strings.Builder
	for i := range 256 {
		b.WriteByte(byte(i))
	}
	return b.String()
}

// odd returns messages with unusual payloads and metadata, by id.
func odd() map[string]*message.Message {
	text := message.Metadata{
		"plain": "value", "empty": "", "ключ": "значение", "emoji": "🐇🕳", "quotes": `"'\{}<>&`,
		"a b": "space", "x:y": "colon",
		"Case": "1", "case": "2", "padded": "  both  ", "lines": "one\r\ntwo\nthree", "tab": "a\tb",
		"long": strings.Repeat("ä", 5000),
		"json": `{"a": [1, null]}`, "percent": "%00%ff%s",
	}
	messages := map[string]*message.Message{
		"plain":    message.NewMessage("plain", []byte(`{"order": 1}`)),
		"empty":    message.NewMessage("empty", nil),
		"bytes":    message.NewMessage("bytes", []byte(everyByte())),
		"unicode":  message.NewMessage("unicode", []byte("Grüße, 世界 \u0000 🐇")),
		"large":    message.NewMessage("large", []byte(strings.Repeat(everyByte(), 3900))), // almost 1 MB
		"metadata": message.NewMessage("metadata", []byte("text")),
		"octets":   message.NewMessage("octets", []byte("text")),
	}
	messages["metadata"].Metadata = text
	messages["octets"].Metadata = message.Metadata{
		"octets": "\xff\xfe" + everyByte()[1:9], "nul": "a\x00b", "\xff": "key",
	}
	return messages
}

// publishOdd publishes a message. nats.go 1.55 refuses names of headers that HTTP does not allow: then it is without them.
func publishOdd(t *testing.T, publisher message.Publisher, topic string, msg *message.Message) {
	t.Helper()
	if publisher.Publish(topic, msg.Copy()) == nil {
		return
	}
	for name := range msg.Metadata {
		if strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' }) {
			delete(msg.Metadata, name)
		}
	}
	require.NoError(t, publisher.Publish(topic, msg.Copy()))
}

// deadLetters: a dead letter has the complete failure record. All its other bytes are those of the message that the
// handler got first, and so are those of the message that the handler gets after a redrive.
func deadLetters(t *testing.T, f *fixture) {
	topics := f.topics(1)
	app := f.app(100*time.Millisecond, 200*time.Millisecond)
	var healthy atomic.Bool
	app.Lease = time.Minute // a slow machine must not cause duplicates: a letter of each would come
	var mu sync.Mutex
	first := map[string]*message.Message{}
	began := time.Now().Truncate(time.Millisecond)
	f.run(app, topics, func(msg *message.Message) error {
		one := f.ledger.add(msg)
		mu.Lock()
		defer mu.Unlock()
		if one.failures == 0 && first[msg.UUID] == nil {
			first[msg.UUID] = msg.Copy()
		}
		switch {
		case healthy.Load():
			return nil
		case one.id == "plain":
			return backoff.Permanent(errDown)
		default:
			return errDown
		}
	})
	sent := odd()
	publisher, err := f.backend.Publisher()
	require.NoError(t, err)
	for _, msg := range sent {
		publishOdd(t, publisher, topics[0], msg)
	}
	require.NoError(t, publisher.Close())
	all := map[string]*letters.Letter{}
	f.eventually("all are dead", func() bool {
		for _, letter := range f.letters(app, topics[0]) {
			all[letter.ID] = letter
		}
		return len(all) >= len(sent)
	})

	for id, was := range sent {
		letter := all[id]
		require.NotNil(t, letter, "%s", id)
		record := letter.Record
		want := retry.Record{
			Failures: 3, Reason: errDown.Error(), ErrorType: "*errors.errorString", Topic: topics[0],
			Handler: handlerName(0), Subscriber: record.Subscriber, DeadReason: retry.DeadReasonExhausted,
			FirstFailedAt: record.FirstFailedAt, LastFailedAt: record.LastFailedAt,
		}
		if id == "plain" {
			want.Failures, want.DeadReason = 1, retry.DeadReasonPermanent
		} else {
			assert.GreaterOrEqual(t, record.LastFailedAt.Sub(record.FirstFailedAt), 299*time.Millisecond)
		}
		assert.Equal(t, want, record, "%s", id)
		assert.False(t, record.FirstFailedAt.Before(began))
		assert.False(t, record.LastFailedAt.After(time.Now()))

		assert.Equal(t, string(was.Payload), string(letter.Payload), "%s", id)
		got := bare(letter.Metadata)
		assert.Equal(t, bare(first[id].Metadata), got, "%s: the letter is what the handler got first", id)
		kept := maps.Clone(was.Metadata)
		changed := maps.Clone(got)
		for key, value := range was.Metadata {
			if !f.Expect.Keeps(key, value) {
				delete(kept, key)
				delete(changed, key)
			}
		}
		for key := range changed { // a key that the backend does not keep may come back under another name
			if _, known := was.Metadata[key]; !known {
				delete(changed, key)
			}
		}
		assert.Equal(t, map[string]string(kept), map[string]string(changed), "%s", id)
	}
	if f.Expect.Letters != registry.AllLetters {
		return
	}
	healthy.Store(true)
	store, err := f.backend.Letters(app)
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	summary, err := store.Redrive(noContext, f.backend.DeadTopic(app, topics[0]), letters.Redrive{})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: summary.Total, Done: summary.Total}, summary)
	for id, letter := range all {
		var last try
		f.eventually("it is handled", func() bool {
			tries := f.ledger.of(id)
			last = tries[len(tries)-1]
			history, _ := letters.ReadRedriven(last.msg.Metadata)
			return history.Times == 1
		})
		assert.Zero(t, last.failures, id)
		assert.Equal(t, string(letter.Payload), string(last.msg.Payload), id)
		assert.Equal(t, bare(letter.Metadata), bare(last.msg.Metadata), id)
	}
}

// bare returns the metadata without the keys that the middleware and Watermill write.
func bare(metadata message.Metadata) message.Metadata {
	kept := message.Metadata{}
	for key, value := range metadata {
		own := strings.HasPrefix(key, "retry_") || strings.HasSuffix(key, "_poisoned")
		if !own && !strings.HasPrefix(key, "_watermill") {
			kept[key] = value
		}
	}
	return kept
}

package middleware

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// A Producer publishes what handlers produce. The failure of a message gets the error from what was produced for it:
// the router only nacks the message.
type Producer struct{ message.Publisher }

// Publish implements message.Publisher.
func (p Producer) Publish(topic string, messages ...*message.Message) error {
	err := p.Publisher.Publish(topic, messages...)
	if err != nil {
		for _, msg := range messages {
			msgctx.Unpublished(msg, err)
		}
	}
	return err
}

func (p Producer) String() string { return fmt.Sprint(p.Publisher) }

// notPublished is a retry.ErrNotPublished whose cause is known.
type notPublished struct{ cause error }

func (e notPublished) Error() string {
	return "cannot publish what the handler produced: " + e.cause.Error()
}
func (e notPublished) Unwrap() error        { return e.cause }
func (e notPublished) Is(target error) bool { return target == retry.ErrNotPublished }

// NotPublished retries a message, as it was delivered, whose handler has succeeded, and which was nacked nevertheless.
// A nil cause is not known. The failure is counted whatever the pauses and the limits of keys are: no call needs them.
func (t *TieredRetry) NotPublished(msg *message.Message, cause error) error {
	failure := retry.ErrNotPublished
	if cause != nil {
		failure = notPublished{cause}
	}
	msgctx.Lookup(msg).Unproduced = failure
	_, err := t.Dispatch(nil)(msg)
	return err
}

// ownKeys are the keys of the record's fields, and delayKeys those of Watermill's components/delay. Pub/Subs that delay
// messages by themselves use the latter.
var (
	ownKeys = slices.DeleteFunc(retry.RecordKeys(), func(key string) bool {
		return !strings.HasPrefix(key, "retry_")
	})
	delayKeys = []string{delay.DelayedUntilKey, delay.DelayedForKey}
)

// removeRecord removes the record of the inbound message from the messages that its handler produced. It must never
// count on their topic. Maps are replaced, not written into: they may be the inbound message's own. A delay stays where
// it is not the inbound message's: a handler may delay what it produces.
func removeRecord(produced []*message.Message, inbound message.Metadata) {
	for _, msg := range produced {
		if msg == nil || !carriesRecord(msg.Metadata) {
			continue
		}
		clean := maps.Clone(msg.Metadata)
		for _, key := range ownKeys {
			delete(clean, key)
		}
		delete(clean, recordkey.Properties)
		delete(clean, recordkey.UnmarshalError)
		delete(clean, recordkey.Redriven)
		for _, key := range delayKeys {
			if clean[key] == inbound[key] {
				delete(clean, key)
			}
		}
		msg.Metadata = clean
	}
}

// carriesRecord runs for every message. It looks only for the keys without which the others have no meaning.
func carriesRecord(metadata message.Metadata) bool {
	if len(metadata) == 0 {
		return false
	}
	_, failures := metadata[recordkey.Failures]
	_, properties := metadata[recordkey.Properties]
	_, redriven := metadata[recordkey.Redriven]
	return failures || properties || redriven
}

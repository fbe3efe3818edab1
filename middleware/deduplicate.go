// Package middleware has what an app gives to Watermill's own middlewares beside that of a Connection.
package middleware

import (
	"math"

	"github.com/ThreeDotsLabs/watermill/message"
	watermillmw "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/tieredretry/watermill-retry/internal/middleware"
)

// DeduplicationKey returns a KeyFactory for Watermill's Deduplicator, which must be inside of the retry middleware.
// Each try of a message has a key of its own, so that a retry is no duplicate; a second message with the same key at
// the same try is one. The messages of two handlers are never duplicates of each other. Tries are counted as failures
// and snoozes are.
//
// A message that is given back after its handler was called comes again with the same key. If the repository still has
// the key, the Deduplicator drops the message, and it is lost. A message is given back at a shutdown, by the action
// GiveBack, and when its copy cannot be published for MaxHold. Use the Deduplicator only where this loss does less harm
// than a duplicate.
//
// key is the key of a message without its tries. Nil: the UUID, or the SHA-256 of the payload of a message without one.
func DeduplicationKey(key watermillmw.MessageHasher) watermillmw.MessageHasher {
	if key == nil {
		payload := watermillmw.NewMessageHasherSHA256(math.MaxInt64)
		key = func(msg *message.Message) (string, error) {
			if msg.UUID != "" {
				return msg.UUID, nil
			}
			return payload(msg)
		}
	}
	return func(msg *message.Message) (string, error) {
		own, err := key(msg)
		if err != nil {
			return "", err
		}
		return middleware.TryOf(msg) + " " + own, nil
	}
}

package relayletters

import (
	"crypto/sha256"
	"fmt"
	"maps"

	"github.com/ThreeDotsLabs/watermill/message"
	poison "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/internal/redrive"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// letter describes a message of a dead-letter topic.
func (s *Store) letter(topic string, msg *message.Message) *letters.Letter {
	letter := &letters.Letter{
		ID: msg.UUID, Queue: topic, Kind: letters.Unknown, Metadata: ownMetadata(msg.Metadata), Payload: msg.Payload,
	}
	if letter.ID == "" {
		letter.ID = fmt.Sprintf("#%x", sha256.Sum256(msg.Payload))[:17]
	}
	letter.Redriven, _ = letters.ReadRedriven(msg.Metadata)
	record, _ := retry.ReadRecord(msg.Metadata)
	switch {
	case msg.Metadata[recordkey.DeadReason] != "":
		letter.Kind, letter.Record = letters.Library, record
		letter.Target = s.topics().ReturnOf(topic)
	case msg.Metadata[poison.ReasonForPoisonedKey] != "":
		letter.Kind, letter.Record = letters.Poison, record
		letter.Record.Reason = msg.Metadata[poison.ReasonForPoisonedKey]
		letter.Record.Topic = msg.Metadata[poison.PoisonedTopicKey]
		letter.Record.Handler = msg.Metadata[poison.PoisonedHandlerKey]
	}
	return letter
}

// ownMetadata is the metadata of the app.
func ownMetadata(all message.Metadata) message.Metadata {
	own := maps.Clone(all)
	for _, key := range append(retry.RecordKeys(), letters.RedrivenKey) {
		delete(own, key)
	}
	return own
}

// fresh returns the message of a letter as it is published again: with its history, and without its record but the
// trace.
func fresh(msg *message.Message, letter *letters.Letter, entry letters.PastRedrive) *message.Message {
	again := letters.Fresh(msg)
	if traceparent := redrive.Traceparent(letter.Record); traceparent != "" {
		again.Metadata[recordkey.Traceparent] = traceparent
	}
	letter.Redriven.Add(entry).Write(again.Metadata)
	return again
}

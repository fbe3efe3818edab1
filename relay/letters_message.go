package relay

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	poison "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/tieredretry/watermill-retry/internal/lettertext"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// letter describes a message of a dead-letter topic.
func (l *Letters) letter(topic string, msg *message.Message) *letters.Letter {
	letter := &letters.Letter{ID: msg.UUID, Queue: topic, Kind: letters.Unknown, Metadata: ownMetadata(msg.Metadata), Payload: msg.Payload}
	if letter.ID == "" {
		letter.ID = fmt.Sprintf("#%x", sha256.Sum256(msg.Payload))[:17]
	}
	letter.Redriven, _ = retry.ReadRedriven(msg.Metadata)
	record, known := retry.ReadRecord(msg.Metadata)
	switch {
	case msg.Metadata[retry.DeadReasonKey] != "":
		letter.Kind, letter.Record = letters.Library, record
		if !known {
			letter.Record = lettertext.Texts(msg.Metadata)
		}
		letter.Target = l.target(topic, letter.Record.Handler)
	case msg.Metadata[poison.ReasonForPoisonedKey] != "":
		letter.Kind, letter.Record = letters.Poison, lettertext.Texts(msg.Metadata)
		letter.Record.Reason, letter.Record.Topic = msg.Metadata[poison.ReasonForPoisonedKey], msg.Metadata[poison.PoisonedTopicKey]
		letter.Record.Handler = msg.Metadata[poison.PoisonedHandlerKey]
	}
	return letter
}

// target returns the return topic of a handler. It is empty where the dead letters of that handler are on another topic: every publisher
// can write a handler's name.
func (l *Letters) target(topic, handler string) string {
	if handler == "" {
		return ""
	}
	if dead, err := l.TopicOf(handler); err != nil || dead != topic {
		return ""
	}
	target, err := l.names.topic(TopicParams{Kind: ReturnTopic, Handler: handler})
	if err != nil {
		return ""
	}
	return target
}

// ownMetadata is the metadata of the app.
func ownMetadata(all message.Metadata) message.Metadata {
	own := maps.Clone(all)
	for _, key := range append(retry.RecordKeys(), retry.RedrivenKey, hopKey) {
		delete(own, key)
	}
	return own
}

// redriven returns the message of a letter as it is published again: with its history, and without its record but the trace.
func redriven(msg *message.Message, letter *letters.Letter, options letters.Redrive, run string) (*message.Message, error) {
	fresh := letters.Fresh(msg)
	delete(fresh.Metadata, hopKey)
	if traceparent := lettertext.Traceparent(letter.Record); traceparent != "" {
		fresh.Metadata[retry.TraceparentKey] = traceparent
	}
	if options.Edit != nil {
		payload, err := options.Edit(letter)
		if err != nil {
			return nil, fmt.Errorf("letter %q stays where it is: Redrive.Edit: %w", letter.ID, err)
		}
		fresh.Payload = payload
	}
	letter.Redriven.Add(retry.Redrive{
		Run: run, At: time.Now(), By: options.By, Note: options.Note,
		Failures: letter.Record.Failures, DeadReason: letter.Record.DeadReason, Reason: letter.Record.Reason,
	}).Write(fresh.Metadata)
	return fresh, nil
}

package relay

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	poison "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/middleware"
)

// letter describes a message of a dead-letter topic.
func (l *Letters) letter(topic string, msg *message.Message) *letters.Letter {
	letter := &letters.Letter{ID: msg.UUID, Queue: topic, Kind: letters.Unknown, Metadata: ownMetadata(msg.Metadata), Payload: msg.Payload}
	if letter.ID == "" {
		letter.ID = fmt.Sprintf("#%x", sha256.Sum256(msg.Payload))[:17]
	}
	letter.Redriven, _ = middleware.ReadRedriven(msg.Metadata)
	if record, found := middleware.ReadRecord(msg.Metadata); found {
		letter.Kind, letter.Record = letters.Library, record
		if record.Handler != "" { // a name for which there is no topic is an unknown target
			letter.Target, _ = l.names.topic(TopicParams{Kind: ReturnTopic, Handler: record.Handler})
		}
	} else if msg.Metadata[poison.PoisonedTopicKey] != "" {
		letter.Kind = letters.Poison
		letter.Record = middleware.Record{
			Reason: msg.Metadata[poison.ReasonForPoisonedKey], Topic: msg.Metadata[poison.PoisonedTopicKey],
			Handler: msg.Metadata[poison.PoisonedHandlerKey], Subscriber: msg.Metadata[poison.PoisonedSubscriberKey],
		}
	}
	return letter
}

// ownMetadata is the metadata of the app.
func ownMetadata(all message.Metadata) message.Metadata {
	own := maps.Clone(all)
	for _, key := range append(middleware.RecordKeys(), middleware.RedrivenKey, hopKey) {
		delete(own, key)
	}
	return own
}

// redriven returns the message of a letter as it is published again: without its record, and with its history.
func redriven(msg *message.Message, letter *letters.Letter, options letters.Redrive, run string) (*message.Message, error) {
	fresh := letters.Fresh(msg)
	delete(fresh.Metadata, hopKey)
	if options.Edit != nil {
		payload, err := options.Edit(letter)
		if err != nil {
			return nil, fmt.Errorf("letter %q stays where it is: Redrive.Edit: %w", letter.ID, err)
		}
		fresh.Payload = payload
	}
	letter.Redriven.Add(middleware.Redrive{
		Run: run, At: time.Now(), By: options.By, Note: options.Note,
		Failures: letter.Record.Failures, DeadReason: letter.Record.DeadReason, Reason: letter.Record.Reason,
	}).Write(fresh.Metadata)
	return fresh, nil
}

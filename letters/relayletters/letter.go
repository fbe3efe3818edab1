package relayletters

import (
	"crypto/sha256"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	poison "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/tieredretry/watermill-retry/internal/letterline"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/internal/redrive"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// letter describes a message of a dead-letter topic.
func (s *Store) letter(topic string, msg *message.Message) *letters.Letter {
	own := letters.Fresh(msg).Metadata
	delete(own, letters.RedrivenKey)
	letter := &letters.Letter{ID: msg.UUID, Queue: topic, Kind: letters.Unknown, Metadata: own, Payload: msg.Payload}
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

// appendLine appends a letter as one line of JSON, in the form that RabbitMQ's letters have. The UUID is a header.
func appendLine(b []byte, msg *message.Message, l *letters.Letter) ([]byte, error) {
	headers := msg.Copy().Metadata
	headers[letterline.UUIDHeader] = msg.UUID
	table, _ := letterline.Table(headers) // each text can be written
	topic := letterline.EncodeText(l.Queue)
	return letterline.Line{
		ID: l.ID, Queue: topic, Target: l.Target, Kind: string(l.Kind), Record: l.Record, RoutingKey: topic,
		Properties: map[string]any{}, Headers: table, Body: msg.Payload,
	}.Append(b)
}

// parseLine reads what appendLine wrote. It refuses a letter that has what only AMQP has.
func parseLine(text []byte) (topic string, msg *message.Message, err error) {
	reader := letterline.Reader[map[string]any, letterline.Decimal]{Needed: []string{"queue", "headers", "body"}}
	l, err := reader.Read(text)
	if err != nil {
		return "", nil, fmt.Errorf("it is no letter of an export: %w", err)
	}
	for name := range l.Properties {
		return "", nil, fmt.Errorf("the letter has the property %q, which only RabbitMQ keeps: import it there", name)
	}
	msg = message.NewMessage("", l.Body)
	for key, value := range l.Headers {
		plain, isText := value.(string)
		if !isText {
			return "", nil, fmt.Errorf("headers.%s is no text, and only RabbitMQ has other headers: import the letter "+
				"there", key)
		}
		msg.Metadata[key] = plain
	}
	msg.UUID = msg.Metadata[letterline.UUIDHeader]
	delete(msg.Metadata, letterline.UUIDHeader)
	return l.Queue, msg, nil
}

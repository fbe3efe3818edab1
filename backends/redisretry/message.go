package redisretry

import (
	"fmt"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/vmihailenco/msgpack"

	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// The fields of a stream's entry, as watermill-redisstream's DefaultMarshallerUnmarshaller has them.
const (
	uuidField     = redisstream.UUIDHeaderKey
	metadataField = "metadata"
	payloadField  = "payload"
)

// fieldsOf returns the entry of a message. watermill-redisstream's own marshaler refuses metadata with the key of the
// UUID, so a message that has it could be no dead letter.
func fieldsOf(msg *message.Message) ([]any, error) {
	var metadata []byte
	if len(msg.Metadata) > 0 {
		var err error
		if metadata, err = msgpack.Marshal(msg.Metadata); err != nil {
			return nil, fmt.Errorf("cannot write the metadata: %w", err)
		}
	}
	return []any{uuidField, msg.UUID, metadataField, metadata, payloadField, []byte(msg.Payload)}, nil
}

// messageOf returns the message of an entry.
func messageOf(fields map[string]any) (msg *message.Message, err error) {
	err = panics.Error("watermill-redisstream", func() error {
		msg, err = redisstream.DefaultMarshallerUnmarshaller{}.Unmarshal(fields)
		return err
	})
	return msg, err
}

// foreignLetter returns the dead letter of what cannot be read as a message.
func foreignLetter(uuid, topic string, payload []byte, metadata message.Metadata, why error) *message.Message {
	letter := message.NewMessage(uuid, payload)
	letter.Metadata = maps.Clone(metadata)
	if letter.Metadata == nil {
		letter.Metadata = message.Metadata{}
	}
	now := time.Now()
	retry.Record{
		Failures: 1, FirstFailedAt: now, LastFailedAt: now, Reason: why.Error(), Topic: topic,
		DeadReason: relay.DeadReasonForeign,
	}.Write(letter.Metadata)
	return letter
}

// foreignEntry returns the dead letter of an entry of a stream: all its fields but the payload are metadata.
func foreignEntry(topic, id string, fields map[string]any, why error) *message.Message {
	metadata := message.Metadata{}
	for name, value := range fields {
		if name != payloadField {
			metadata[name] = fmt.Sprint(value)
		}
	}
	payload, _ := fields[payloadField].(string)
	return foreignLetter(id, topic, []byte(payload), metadata, why)
}

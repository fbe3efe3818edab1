package headers_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// writesUUID writes the UUID into a header, or the property message-id, and the metadata into headers.
type writesUUID struct {
	textual
	key string // empty: the property message-id
}

func (m writesUUID) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	p := amqp091.Publishing{Headers: amqp091.Table{}, Body: msg.Payload, AppId: "app"}
	for key, value := range msg.Metadata {
		p.Headers[key] = value
	}
	if m.key == "" {
		p.MessageId = msg.UUID
	} else {
		p.Headers[m.key] = msg.UUID
	}
	return p, nil
}

// TestTheLastFormHasTheUUIDWhereTheMarshalerReadsIt, and nothing else of the message but body and record.
func TestTheLastFormHasTheUUIDWhereTheMarshalerReadsIt(t *testing.T) {
	for name, key := range map[string]string{"own header": "my_id", "message-id": "", "usual header": publisher.UUIDHeader} {
		t.Run(name, func(t *testing.T) {
			msg := message.NewMessage("id-1", []byte("order 1"))
			record := retry.Record{Failures: 1, DeadReason: retry.DeadReasonRefused, LeftOff: "why"}
			record.Write(msg.Metadata)
			msg.Metadata["same"] = msg.UUID
			p, err := headers.New(writesUUID{key: key}, naming.Default).Marshal(msg)
			require.NoError(t, err)
			want := amqp091.Table{
				recordkey.Failures: "1", recordkey.DeadReason: "refused",
				recordkey.LeftOff: "properties app-id; headers same: why",
			}
			if key != "" {
				want[key] = "id-1"
				assert.Empty(t, p.MessageId)
			} else {
				assert.Equal(t, "id-1", p.MessageId)
			}
			assert.Equal(t, want, p.Headers)
			assert.Equal(t, "order 1", string(p.Body))
		})
	}
}

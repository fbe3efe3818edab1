package natsretry

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sent returns what a reader gets of a NATS message: nats.go writes the headers as HTTP does.
func sent(t *testing.T, raw *nats.Msg) *nats.Msg {
	t.Helper()
	var wire bytes.Buffer
	wire.WriteString("NATS/1.0\r\n")
	require.NoError(t, http.Header(raw.Header).Write(&wire))
	wire.WriteString("\r\n")
	header, err := nats.DecodeHeadersMsg(wire.Bytes())
	require.NoError(t, err)
	return &nats.Msg{Subject: raw.Subject, Header: header, Data: raw.Data}
}

func everyByte() string {
	var b strings.Builder
	for i := range 256 {
		b.WriteByte(byte(i))
	}
	return b.String()
}

// A copy keeps every byte, and the server reads no header that the app has set.
func TestCopiesKeepTheMetadata(t *testing.T) {
	t.Parallel()
	metadata := message.Metadata{
		"plain": "value", "empty": "", "Case": "1", "case": "2", "a b": "space", "x:y": "colon", "ключ": "значение",
		"padded": "  both  ", "lines": "one\r\ntwo\nthree", "tab": "\ta\t", "nul": "a\x00b", "\xff": "key", "": "no key",
		"every": everyByte(), everyByte(): "byte", ".dotted": "x", "Status": "503", "Description": "No Messages",
		uuidHeader: "not the id", restHeader: "a=b&%zz",
		"Nats-Rollup": "all", "Nats-Msg-Id": "1", "nats-ttl": "1s", "Nats-Schedule": "@at 2000-01-01T00:00:00Z",
		"Nats-Expected-Last-Sequence": "7", "percent": "%00%ff+", "long": strings.Repeat("ä", 5000),
	}
	for _, id := range []string{"id", "", " padded ", "two\nlines", "\xff"} {
		msg := message.NewMessage(id, []byte(everyByte()))
		msg.Metadata = metadata
		raw := sent(t, marshalCopy("retry.return.billing.orders", msg))
		for key := range raw.Header {
			assert.False(t, strings.HasPrefix(strings.ToLower(key), reserved), key)
		}
		raw.Header["Nats-Scheduler"] = []string{"retry.wait.x.1"} // of the server, when the message is due
		raw.Header["Nats-Schedule-Next"] = []string{"purge"}
		got, err := unmarshalCopy(raw)
		require.NoError(t, err)
		assert.Equal(t, msg.UUID, got.UUID)
		assert.Equal(t, msg.Metadata, got.Metadata)
		assert.Equal(t, msg.Payload, got.Payload)
	}
}

// What a stranger has published is delivered, too.
func TestForeignMessagesCanBeRead(t *testing.T) {
	t.Parallel()
	msg, err := unmarshalCopy(&nats.Msg{Data: []byte("x")})
	require.NoError(t, err)
	assert.Empty(t, msg.UUID)
	assert.Equal(t, "x", string(msg.Payload))

	msg, err = unmarshalCopy(&nats.Msg{Header: nats.Header{"a": {"1", "2"}, restHeader: {"%zz"}, uuidHeader: {"id"}}})
	require.ErrorContains(t, err, restHeader)
	assert.Equal(t, "id", msg.UUID)
	assert.Equal(t, message.Metadata{"a": "1, 2", restHeader: "%zz"}, msg.Metadata)
}

// The app's topics have the headers of watermill-nats.
func TestTopicsOfTheApp(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("id", []byte("payload"))
	msg.Metadata = message.Metadata{"key": "value", "Case": "1", "Nats-Msg-Id": "once"}
	raw := marshal("orders", msg)
	assert.Equal(t, nats.Header{uuidHeader: {"id"}, "key": {"value"}, "Case": {"1"}, "Nats-Msg-Id": {"once"}}, raw.Header)
	assert.Equal(t, "orders", raw.Subject)

	got := unmarshal(sent(t, raw))
	assert.Equal(t, "id", got.UUID)
	assert.Equal(t, message.Metadata{"key": "value", "Case": "1"}, got.Metadata)
	assert.Equal(t, "payload", string(got.Payload))

	several := unmarshal(&nats.Msg{Header: nats.Header{"a": {"1", "2"}}})
	assert.Equal(t, message.Metadata{"a": "1, 2"}, several.Metadata, "it does not block its topic")
}

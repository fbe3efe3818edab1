package natsretry

import (
	"fmt"
	"net/textproto"
	"net/url"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
)

const (
	// uuidHeader is the one of watermill-nats's NATSMarshaler.
	uuidHeader = "_watermill_message_uuid"

	// restHeader has the metadata of a copy that a NATS header would lose or change.
	restHeader = "_watermill_retry_metadata"

	// reserved begins the headers that mean something to the server: "Nats-Rollup: all", for instance, deletes all that
	// a stream has.
	reserved = "nats-"
)

// header returns the NATS message of an app's topic, as watermill-nats's NATSMarshaler does.
func marshal(subject string, msg *message.Message) *nats.Msg {
	header := make(nats.Header, len(msg.Metadata)+1)
	header[uuidHeader] = []string{msg.UUID}
	for key, value := range msg.Metadata {
		header[key] = []string{value}
	}
	return &nats.Msg{Subject: subject, Header: header, Data: msg.Payload}
}

// marshalCopy returns the NATS message of a copy, which keeps every byte of the metadata.
func marshalCopy(subject string, msg *message.Message) *nats.Msg {
	header := make(nats.Header, len(msg.Metadata)+4)
	rest := url.Values{}
	header[uuidHeader] = []string{msg.UUID}
	if msg.UUID != lineOf(msg.UUID) {
		header[uuidHeader] = []string{""}
		rest.Set(uuidHeader, msg.UUID)
	}
	for key, value := range msg.Metadata {
		if isHeader(key, value) {
			header[key] = []string{value}
		} else {
			rest.Set(restPrefix+key, value)
		}
	}
	if len(rest) > 0 {
		header[restHeader] = []string{rest.Encode()}
	}
	return &nats.Msg{Subject: subject, Header: header, Data: msg.Payload}
}

// restPrefix keeps a metadata key apart from the UUID.
const restPrefix = "."

// isHeader reports whether a NATS header carries an entry unchanged, and the server does not read it.
func isHeader(key, value string) bool {
	if key == "" || key == uuidHeader || key == restHeader ||
		len(key) >= len(reserved) && strings.EqualFold(key[:len(reserved)], reserved) {
		return false
	}
	return !strings.ContainsFunc(key, func(r rune) bool { return !isToken(r) }) && value == lineOf(value)
}

// isToken reports whether a header's name may have a character: nats.go leaves out a header with another one.
func isToken(r rune) bool {
	return r > ' ' && r < 0x7f && !strings.ContainsRune(`()<>@,;:\"/[]?={}`, r)
}

// lineOf returns what nats.go makes of a header's value.
func lineOf(value string) string {
	return textproto.TrimString(strings.NewReplacer("\r", " ", "\n", " ").Replace(value))
}

// unmarshal returns the message of an app's topic, as watermill-nats's NATSMarshaler does. A header with several values
// has them in one, with a comma between them: the NATSMarshaler returns an error there, which blocks the topic.
func unmarshal(raw *nats.Msg) *message.Message {
	msg := message.NewMessage(raw.Header.Get(uuidHeader), raw.Data)
	for key, values := range raw.Header {
		switch key {
		case uuidHeader, nats.MsgIdHdr, nats.ExpectedLastMsgIdHdr, nats.ExpectedStreamHdr, nats.ExpectedLastSubjSeqHdr,
			nats.ExpectedLastSeqHdr:
		default:
			msg.Metadata[key] = strings.Join(values, ", ")
		}
	}
	return msg
}

// unmarshalCopy returns the message of a copy. What a stranger has published there is read too: the error says what
// could not be.
func unmarshalCopy(raw *nats.Msg) (*message.Message, error) {
	msg := message.NewMessage(raw.Header.Get(uuidHeader), raw.Data)
	for key, values := range raw.Header {
		if key != uuidHeader && key != restHeader && (len(key) < len(reserved) ||
			!strings.EqualFold(key[:len(reserved)], reserved)) {
			msg.Metadata[key] = strings.Join(values, ", ")
		}
	}
	encoded := raw.Header.Get(restHeader)
	if encoded == "" {
		return msg, nil
	}
	rest, err := url.ParseQuery(encoded)
	if err != nil {
		msg.Metadata[restHeader] = encoded
		return msg, fmt.Errorf("header %s: %w", restHeader, err)
	}
	for key, values := range rest {
		if own, found := strings.CutPrefix(key, restPrefix); found {
			msg.Metadata[own] = values[0]
		} else if key == uuidHeader {
			msg.UUID = values[0]
		}
	}
	return msg, nil
}

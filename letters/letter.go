package letters

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/retry"
)

// Kind is who gave a message up.
type Kind string

const (
	// Library is a dead letter of the retry middleware.
	Library Kind = "library"
	// Broker is a message that the broker itself dead-lettered, for example at its delivery limit.
	Broker Kind = "broker"
	// Poison is a message of Watermill's PoisonQueue.
	Poison Kind = "poison"
	// Orphan is a message whose work queue was gone when its delay was over.
	Orphan Kind = "orphan"
	// Unknown is a message without any record of a failure.
	Unknown Kind = "unknown"
)

// Text returns the kind in words.
func (k Kind) Text() string {
	return map[Kind]string{
		Library: "given up by the retry middleware",
		Broker:  "dead-lettered by the broker",
		Poison:  "given up by Watermill's PoisonQueue",
		Orphan:  "orphan: its work queue was gone when its delay was over",
		Unknown: "unknown: it has no record of a failure",
	}[k]
}

// A Letter is a dead letter or an orphan. Its JSON leaves out what is empty.
type Letter struct {
	// ID is the UUID of the message, or else its AMQP message-id, or else a hash of the letter that begins with "#".
	// Letters of the same message have the same ID.
	ID string `json:"id"`
	// Queue is where the letter is: a queue or a topic.
	Queue string `json:"queue"`
	// Target is the work queue or topic that a redrive sends it to. Empty: unknown; Redrive.To names it.
	Target string `json:"target,omitzero"`
	Kind   Kind   `json:"kind"`
	// Record is the failure record. For letters of Broker and Poison it has what their own records have.
	Record retry.Record `json:"record"`
	// Redriven is how often the message was redriven before.
	Redriven Redriven `json:"redriven,omitzero"`
	// Metadata are the headers of the app that are strings, without the record.
	Metadata message.Metadata `json:"metadata,omitempty"`
	// Headers are those of the app that are not strings.
	Headers map[string]any `json:"headers,omitempty"`
	// Properties are those of AMQP, by their name, and the exchange and routing_key that the message was first
	// published with.
	Properties map[string]string `json:"properties,omitempty"`
	Payload    []byte            `json:"payload,omitempty"`
}

// DeadAt is when the message was given up: the time of its last failure. It is zero where that is unknown.
func (l *Letter) DeadAt() time.Time { return l.Record.LastFailedAt }

// HeaderText returns the type of a header's value in words of AMQP, and the value as text.
func HeaderText(value any) (kind, text string) {
	switch v := value.(type) {
	case nil:
		return "void", ""
	case []byte:
		return "bytes", hex.EncodeToString(v)
	case time.Time:
		return "timestamp", v.UTC().Format(time.RFC3339)
	case byte:
		return "byte", fmt.Sprint(v)
	}
	kind = map[reflect.Kind]string{
		reflect.Map: "table", reflect.Slice: "array", reflect.Struct: "decimal",
	}[reflect.TypeOf(value).Kind()]
	if kind == "" {
		return fmt.Sprintf("%T", value), fmt.Sprint(value)
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return kind, fmt.Sprint(value)
	}
	return kind, string(encoded)
}

// BodyText returns a body as text, and which form that is: JSON with indents, text as it is, or hex where the body is
// bytes. The text is not escaped.
func BodyText(body []byte) (form, text string) {
	var indented bytes.Buffer
	trimmed := bytes.TrimSpace(body)
	switch {
	case len(trimmed) > 0 && (trimmed[0] == '{' || trimmed[0] == '[') && depth(body) <= maxDepth &&
		json.Indent(&indented, body, "", "  ") == nil:
		return "JSON", indented.String()
	case isText(body):
		return "text", string(body)
	}
	return "hex", hex.Dump(body)
}

// maxDepth is how deep JSON is indented: each level adds spaces to each line.
const maxDepth = 64

// depth returns how deep arrays and objects are at most. It counts the brackets in texts too.
func depth(body []byte) (deepest int) {
	now := 0
	for _, b := range body {
		switch b {
		case '[', '{':
			now++
			deepest = max(deepest, now)
		case ']', '}':
			now--
		}
	}
	return deepest
}

// isText reports whether at most a tenth of a body are characters without a glyph.
func isText(body []byte) bool {
	odd := 0
	for _, r := range string(body) {
		if !unicode.IsPrint(r) && r != '\n' && r != '\t' && r != '\r' {
			odd++
		}
	}
	return utf8.Valid(body) && odd*10 <= len(body)
}

// Fresh returns a copy of a dead letter without its failure record, for handlers that forward a letter themselves:
// with the record its retries are still used up. The app's own metadata, the AMQP properties and the history of
// redrives stay. The copy has the context of msg.
func Fresh(msg *message.Message) *message.Message {
	fresh := msg.CopyWithContext()
	for _, key := range retry.RecordKeys() {
		delete(fresh.Metadata, key)
	}
	return fresh
}

package postgresretry

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// unreadableKey is the metadata key of a text in the column metadata that is no metadata.
const unreadableKey = "retry_unreadable_metadata"

// encodeMetadata returns the JSON of metadata: an object. Where a text is not UTF-8, which JSON cannot have, it is an
// array of keys and values in base64.
func encodeMetadata(metadata message.Metadata) (string, error) {
	var pairs [][2][]byte
	valid := true
	for key, value := range metadata {
		valid = valid && utf8.ValidString(key) && utf8.ValidString(value)
		pairs = append(pairs, [2][]byte{[]byte(key), []byte(value)})
	}
	if !valid {
		text, err := json.Marshal(pairs)
		return string(text), err
	}
	if metadata == nil {
		metadata = message.Metadata{}
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // operators read it
	err := encoder.Encode(metadata)
	return text.String(), err
}

// decodeMetadata reads what encodeMetadata has written, and every other text that can be in the column: a message that
// another program has inserted must not stop those behind it.
func decodeMetadata(text []byte) message.Metadata {
	metadata := message.Metadata{}
	if json.Unmarshal(text, &metadata) == nil && metadata != nil {
		return metadata
	}
	metadata = message.Metadata{}
	var pairs [][2][]byte
	if json.Unmarshal(text, &pairs) == nil {
		for _, pair := range pairs {
			metadata[string(pair[0])] = string(pair[1])
		}
		return metadata
	}
	var values map[string]json.RawMessage
	if json.Unmarshal(text, &values) != nil {
		metadata[unreadableKey] = string(text)
	}
	for key, value := range values {
		var plain string
		if json.Unmarshal(value, &plain) != nil {
			plain = string(value)
		}
		metadata[key] = plain
	}
	return metadata
}

package headers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
)

// What a dead letter in its last form says of what it lacks.
const (
	maxLeftOff = 1024 // bytes in all
	maxNames   = 512  // bytes of names
	maxName    = 64   // bytes of one of them

	maxMessageID = 255 // bytes of a short string
)

// lastForm returns the form of a dead letter that is published when the whole one is refused for good: body, UUID and
// failure record. A raw one stays raw. off names the properties and headers that are left off, and why. The UUID is
// where the app's marshaler has written it: in the property message-id, or in a header that is no metadata.
func lastForm(whole amqp091.Publishing, msg *message.Message, why string) (last amqp091.Publishing, off string) {
	last = amqp091.Publishing{Headers: amqp091.Table{}, Body: whole.Body, DeliveryMode: amqp091.Persistent}
	uuid, written := msg.UUID, msg.UUID == ""
	if uuid != "" && len(uuid) <= maxMessageID && whole.MessageId == uuid {
		last.MessageId, whole.MessageId = uuid, ""
		written = true
	}
	var names []string
	for key, value := range whole.Headers {
		switch {
		case recordKeys[key], key == rawHeader:
			last.Headers[key] = value
		case uuid != "" && value == uuid && msg.Metadata[key] == "":
			last.Headers[key], written = value, true
		default:
			names = append(names, key)
		}
	}
	if !written {
		last.Headers[publisher.UUIDHeader] = uuid
	}
	slices.Sort(names)
	parts := []string{listed("properties", propertiesIn(&whole))}
	parts = append(parts, listed("headers", names))
	off = strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), "; ")
	if off == "" { // it was in its last form before
		off = why
	} else {
		off = strings.ToValidUTF8(off+": "+why, "")
	}
	off = strings.ToValidUTF8(off[:min(len(off), maxLeftOff)], "")
	last.Headers[recordkey.LeftOff] = off
	return last, off
}

// propertiesIn returns the names of the properties that a publishing has.
func propertiesIn(p *amqp091.Publishing) (all []string) {
	for i, text := range textsOf(p) {
		if *text != "" {
			all = append(all, textNames[i])
		}
	}
	if p.Priority != 0 {
		all = append(all, "priority")
	}
	if !p.Timestamp.IsZero() {
		all = append(all, "timestamp")
	}
	slices.Sort(all)
	return all
}

// listed returns the names as far as there is room, and how many more there are.
func listed(kind string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	text := kind
	for i, name := range names {
		if len(name) > maxName {
			name = strings.ToValidUTF8(name[:maxName], "") + "..."
		}
		if len(text)+len(name) > maxNames {
			return text + fmt.Sprintf(" and %d more", len(names)-i)
		}
		separator := ", "
		if i == 0 {
			separator = " "
		}
		text += separator + name
	}
	return text
}

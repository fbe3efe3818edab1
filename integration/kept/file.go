package kept

import (
	"cmp"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// A File is the data of one version of RabbitMQ.
type File struct {
	Broker   string      `json:"broker"`
	KeptAt   time.Time   `json:"kept_at"`
	Former   Definitions `json:"former"` // what was declared beside the topology of the apps
	Messages []Message   `json:"messages"`
	Expected Seen        `json:"expected"`
}

// A Message is in its queue, as a client gets it.
type Message struct {
	State      string            `json:"state"` // for readers of the file
	Queue      string            `json:"queue"`
	Exchange   string            `json:"exchange"`
	RoutingKey string            `json:"routing_key"`
	Properties map[string]string `json:"properties"`
	Timestamp  int64             `json:"timestamp,omitzero"` // the property, in seconds
	Priority   uint8             `json:"priority,omitzero"`
	Headers    table             `json:"headers"`
	Body       value             `json:"body"`
}

// Read reads a file.
func Read(name string) (*File, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var f File
	return &f, json.Unmarshal(text, &f)
}

// single is an object with one field that is on three lines.
var single = regexp.MustCompile(`\{\n *(".*": [^\[{\n]+)\n *\}`)

// Write writes a file.
func (f *File) Write(name string) error {
	slices.SortFunc(f.Messages, func(a, b Message) int {
		return cmp.Or(strings.Compare(a.Queue, b.Queue), strings.Compare(a.Identity(), b.Identity()))
	})
	text, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(single.ReplaceAll(text, []byte("{$1}")), '\n'), 0o644)
}

// identity returns the first line of a body. No two messages of a file have the same.
func identity(body []byte) string {
	id, _, _ := strings.Cut(string(body), "\n")
	return id
}

// Identity is that of the message's body.
func (m *Message) Identity() string { return identity(m.Body.of.([]byte)) }

// publishing returns what a client publishes to put the message back.
func (m *Message) publishing() amqp091.Publishing {
	p := amqp091.Publishing{
		Headers: amqp091.Table(m.Headers), Body: m.Body.of.([]byte), DeliveryMode: amqp091.Persistent,
		Priority: m.Priority,
	}
	if m.Timestamp != 0 {
		p.Timestamp = time.Unix(m.Timestamp, 0)
	}
	for name, property := range texts(&p) {
		*property = m.Properties[name]
	}
	return p
}

// texts returns the properties that are texts, by their names.
func texts(p *amqp091.Publishing) map[string]*string {
	return map[string]*string{
		"content_type": &p.ContentType, "content_encoding": &p.ContentEncoding, "correlation_id": &p.CorrelationId,
		"reply_to": &p.ReplyTo, "expiration": &p.Expiration, "message_id": &p.MessageId, "type": &p.Type,
		"user_id": &p.UserId, "app_id": &p.AppId,
	}
}

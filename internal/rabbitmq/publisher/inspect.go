package publisher

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/unfit"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

const (
	maxNesting  = 32   // tables and arrays below the headers: amqp091-go's consumers lose the connection for more
	maxElements = 8192 // entries of one table or array, for the same reason

	frameOverhead  = 8             // type, channel, size, end
	contentHeader  = 2 + 2 + 8 + 2 // class, weight, body size, property flags
	shortStringLen = 1             // the length before a short string
	longLen        = 4             // the length before a long string, table or array
	fieldType      = 1             // the type before a header's value
	timestampLen   = 8
)

// limits are the limits of a connection for a message.
type limits struct {
	frameMax int    // in bytes; 0: no limit
	bodyMax  int    // in bytes; 0: not known
	user     string // empty: not known
}

func limitsOf(c *wire.Connection) limits {
	return limits{frameMax: c.Client.Config.FrameSize, bodyMax: int(c.BodyMax.Load()), user: c.User}
}

// bodyMax is in the reason for which RabbitMQ closes a channel. No client can ask for the limit.
var bodyMax = regexp.MustCompile(`message size \d+ is larger than (?:configured )?max size (\d+)`)

// learn notes the limit that a message has exceeded: the next one must not cost the channel, too.
func learn(c *wire.Connection, reason *amqp091.Error) {
	if found := bodyMax.FindStringSubmatch(reason.Reason); found != nil {
		if limit, err := strconv.ParseInt(found[1], 10, 64); err == nil {
			c.BodyMax.Store(limit)
		}
	}
}

// checkBody returns an error for a body that the broker is known to refuse.
func (l limits) checkBody(body []byte) error {
	if l.bodyMax == 0 || len(body) <= l.bodyMax {
		return nil
	}
	return fmt.Errorf("the payload has %d bytes, and the broker's max_message_size is %d", len(body), l.bodyMax)
}

// excess returns by how many bytes a content header frame of this size is too large.
func (l limits) excess(size int) int {
	if l.frameMax == 0 {
		return 0
	}
	return max(size-l.frameMax, 0)
}

// inspect returns an error for a message that would close the channel or the connection. Other messages in flight would
// fail as well. It also returns the size of the frame with the content header.
func inspect(p *amqp091.Publishing, l limits) (size int, err error) {
	if err := l.checkBody(p.Body); err != nil {
		return 0, err
	}
	size = frameOverhead + contentHeader
	for _, property := range []struct{ name, value string }{
		{"content-type", p.ContentType}, {"content-encoding", p.ContentEncoding}, {"correlation-id", p.CorrelationId},
		{"reply-to", p.ReplyTo}, {"expiration", p.Expiration}, {"message-id", p.MessageId}, {"type", p.Type},
		{"user-id", p.UserId}, {"app-id", p.AppId},
	} {
		if len(property.value) > maxShortString {
			return 0, tooLong("property "+property.name, property.value)
		}
		if property.value != "" {
			size += shortStringLen + len(property.value)
		}
	}
	if p.UserId != "" && l.user != "" && !unfit.IsFit("user-id", p.UserId, l.user) {
		return 0, fmt.Errorf("property user-id is %q, must be the connection's user, %q, or empty", p.UserId, l.user)
	}
	if !unfit.IsFit("reply-to", p.ReplyTo, l.user) {
		return 0, fmt.Errorf("property reply-to is %q, which needs a channel that consumes replies; set the address "+
			"of a queue",
			p.ReplyTo)
	}
	if err := unfit.CheckExpiration(p.Expiration); err != nil {
		return 0, fmt.Errorf("property %w", err)
	}
	for _, key := range []string{"CC", "BCC"} {
		if err := checkRoutes(key, p.Headers); err != nil {
			return 0, err
		}
	}
	if len(p.Headers) > 0 {
		n, err := tableSize("", p.Headers, 0)
		if err != nil {
			return 0, err
		}
		size += n
	}
	if p.DeliveryMode > 0 {
		size++
	}
	if p.Priority > 0 {
		size++
	}
	if !p.Timestamp.IsZero() {
		size += timestampLen
	}
	return size, nil
}

func tooLong(what, value string) error {
	return fmt.Errorf("%s is %q, %d bytes, at most %d", what, clip(value), len(value), maxShortString)
}

func checkRoutes(key string, headers amqp091.Table) error {
	value, set := headers[key]
	if !set {
		return nil
	}
	routes, isArray := value.([]any)
	if !isArray {
		return fmt.Errorf("header %q is a %T, must be an array ([]any) of strings", key, value)
	}
	for i, route := range routes {
		text, isString := route.(string)
		if !isString {
			return fmt.Errorf("header \"%s[%d]\" is a %T, must be a string", key, i, route)
		}
		if len(text) > maxShortString {
			return tooLong(fmt.Sprintf("header \"%s[%d]\"", key, i), text)
		}
	}
	return nil
}

func tableSize(path string, table amqp091.Table, depth int) (int, error) {
	if depth > maxNesting {
		return 0, fmt.Errorf("header %q is nested deeper than %d levels", clip(path), maxNesting)
	}
	if len(table) > maxElements {
		return 0, tooMany(path, len(table))
	}
	size := longLen
	for key, value := range table {
		if len(key) > maxShortString {
			return 0, tooLong("the key of header \""+clip(path)+"\"", key)
		}
		name := key
		if path != "" {
			name = path + "." + key
		}
		n, err := fieldSize(name, value, depth)
		if err != nil {
			return 0, err
		}
		size += shortStringLen + len(key) + n
	}
	return size, nil
}

// fieldSize returns the length of a header's value on the wire, including its type, as amqp091-go's writeField writes
// it.
func fieldSize(path string, value any, depth int) (int, error) {
	switch v := value.(type) {
	case string:
		return fieldType + longLen + len(v), nil
	case []byte:
		return fieldType + longLen + len(v), nil
	case nil:
		return fieldType, nil
	case bool, byte, int8:
		return fieldType + 1, nil
	case int16, uint16:
		return fieldType + 2, nil
	case int32, uint32:
		return fieldType + 4, nil
	case int64, time.Time:
		return fieldType + 8, nil
	case amqp091.Decimal:
		return fieldType + 5, nil
	case int: // amqp091-go always sends it as 32 bits
		if v < math.MinInt32 || v > math.MaxInt32 {
			return 0, fmt.Errorf("header %q is the int %d, must fit into 32 bits; use int64", clip(path), v)
		}
		return fieldType + 4, nil
	case float32:
		return fieldType + 4, checkFloat(path, float64(v))
	case float64:
		return fieldType + 8, checkFloat(path, v)
	case amqp091.Table:
		n, err := tableSize(path, v, depth+1)
		return fieldType + n, err
	case []any:
		return arraySize(path, v, depth+1)
	}
	return 0, fmt.Errorf("header %q is a %T, which has no AMQP type", clip(path), value)
}

func arraySize(path string, array []any, depth int) (int, error) {
	if depth > maxNesting {
		return 0, fmt.Errorf("header %q is nested deeper than %d levels", clip(path), maxNesting)
	}
	if len(array) > maxElements {
		return 0, tooMany(path, len(array))
	}
	size := fieldType + longLen
	for i, value := range array {
		n, err := fieldSize(path+"["+strconv.Itoa(i)+"]", value, depth)
		if err != nil {
			return 0, err
		}
		size += n
	}
	return size, nil
}

func tooMany(path string, elements int) error {
	if path == "" {
		return fmt.Errorf("the message has %d headers, at most %d", elements, maxElements)
	}
	return fmt.Errorf("header %q has %d elements, at most %d", clip(path), elements, maxElements)
}

func checkFloat(path string, value float64) error {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return fmt.Errorf("header %q is %v, must be a finite number", clip(path), value)
	}
	return nil
}

// clip shortens a value of the application for errors.
func clip(value string) string {
	const most = 256
	if len(value) <= most {
		return value
	}
	return value[:most] + "..."
}

package deadletter

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/letterline"
)

const (
	minInt64 = math.MinInt64
	maxInt64 = math.MaxInt64
)

// object reads an object of JSON. encoding/json alone would take the last of two fields with the same name.
func object(at string, raw []byte) (map[string]json.RawMessage, error) {
	fail := func(err error) error { return fmt.Errorf("%s is no JSON object: %w", name(at), err) }
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if start, err := decoder.Token(); err != nil {
		return nil, fail(err)
	} else if start != json.Delim('{') {
		return nil, fmt.Errorf("%s must be a JSON object, and begins with %v", name(at), start)
	}
	fields := map[string]json.RawMessage{}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return nil, fail(err)
		}
		text, _ := key.(string) // JSON has no other keys
		if _, twice := fields[text]; twice {
			return nil, fmt.Errorf("%s has the field %q twice", name(at), text)
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, fail(err)
		}
		fields[text] = value
	}
	if _, err := decoder.Token(); err != nil {
		return nil, fail(err)
	}
	if rest := bytes.TrimSpace(raw[decoder.InputOffset():]); len(rest) > 0 {
		return nil, fmt.Errorf("%s has %d bytes after its end", name(at), len(rest))
	}
	return fields, nil
}

func name(at string) string {
	if at == "" {
		return "the line"
	}
	return at
}

func parseTable(at string, raw json.RawMessage, depth int) (amqp091.Table, error) {
	if err := letterline.CheckDepth(at, depth); err != nil {
		return nil, err
	}
	fields, err := object(at, raw)
	if err != nil {
		return nil, err
	}
	table := make(amqp091.Table, len(fields))
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		at := at + "." + key
		name, err := letterline.DecodeText(at, key)
		if err != nil {
			return nil, err
		}
		if len(name) > maxShortString {
			return nil, fmt.Errorf("%s: the name has %d bytes, and AMQP allows %d", at, len(name), maxShortString)
		}
		if _, twice := table[name]; twice {
			return nil, fmt.Errorf("%s is there twice", at)
		}
		if table[name], err = parseValue(at, fields[key], depth); err != nil {
			return nil, err
		}
	}
	return table, nil
}

func parseValue(at string, raw json.RawMessage, depth int) (any, error) {
	fields, err := object(at, raw)
	if err != nil {
		return nil, err
	}
	if len(fields) != 1 {
		return nil, fmt.Errorf(`%s has %d fields: it must have one, the letter of its type, such as {"S":"text"}`, at,
			len(fields))
	}
	for tag, raw := range fields {
		return parseTagged(at+"."+tag, tag, raw, depth)
	}
	panic("unreachable: it has one field")
}

// parseInteger reads a number of JSON.
func parseInteger[N int8 | uint8 | int16 | uint16 | int32 | uint32](
	at string, raw json.RawMessage, least, most int64,
) (any, error) {
	number, err := parseNumber(at, raw, least, most)
	return N(number), err
}

func parseTagged(at, tag string, raw json.RawMessage, depth int) (any, error) {
	switch tag {
	case "b":
		return parseInteger[int8](at, raw, math.MinInt8, math.MaxInt8)
	case "B":
		return parseInteger[uint8](at, raw, 0, math.MaxUint8)
	case "s":
		return parseInteger[int16](at, raw, math.MinInt16, math.MaxInt16)
	case "u":
		return parseInteger[uint16](at, raw, 0, math.MaxUint16)
	case "I":
		return parseInteger[int32](at, raw, math.MinInt32, math.MaxInt32)
	case "i":
		return parseInteger[uint32](at, raw, 0, math.MaxUint32)
	case "T":
		seconds, err := parseNumber(at, raw, minInt64, maxInt64)
		return time.Unix(seconds, 0), err
	case "V":
		if string(raw) != "null" {
			return nil, fmt.Errorf("%s is %s: it must be null", at, raw)
		}
		return nil, nil
	case "t":
		value, err := parseJSON[bool](at, raw)
		return value, err
	case "l":
		text, err := parseJSON[string](at, raw)
		if err != nil {
			return nil, err
		}
		return parseNumber(at, json.RawMessage(text), minInt64, maxInt64)
	case "f":
		number, err := parseFloat(at, raw, 32)
		return float32(number), err
	case "d":
		return parseFloat(at, raw, 64)
	case "D":
		parts, err := parseJSON[[]json.RawMessage](at, raw)
		if err != nil {
			return nil, err
		}
		if len(parts) != 2 {
			return nil, fmt.Errorf("%s has %d elements: it must have two, scale and value", at, len(parts))
		}
		scale, err := parseNumber(at+"[0]", parts[0], 0, math.MaxUint8)
		if err != nil {
			return nil, err
		}
		value, err := parseNumber(at+"[1]", parts[1], math.MinInt32, math.MaxInt32)
		return amqp091.Decimal{Scale: uint8(scale), Value: int32(value)}, err
	case "S":
		text, err := parseJSON[string](at, raw)
		if err != nil {
			return nil, err
		}
		return letterline.DecodeText(at, text)
	case "x":
		return parseBytes(at, raw)
	case "A":
		return parseArray(at, raw, depth)
	case "F":
		return parseTable(at, raw, depth+1)
	}
	return nil, fmt.Errorf("%s: %q is no letter of an AMQP field type", at, tag)
}

func parseArray(at string, raw json.RawMessage, depth int) (any, error) {
	if err := letterline.CheckDepth(at, depth+1); err != nil {
		return nil, err
	}
	elements, err := parseJSON[[]json.RawMessage](at, raw)
	if err != nil {
		return nil, err
	}
	array := make([]any, len(elements))
	for i, element := range elements {
		if array[i], err = parseValue(at+"["+strconv.Itoa(i)+"]", element, depth+1); err != nil {
			return nil, err
		}
	}
	return array, nil
}

// parseNumber reads an integer. It does not accept a fraction, an exponent or a number out of the range.
func parseNumber(at string, raw json.RawMessage, least, most int64) (int64, error) {
	number, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || number < least || number > most {
		return 0, fmt.Errorf("%s is %.40q: it must be an integer from %d to %d", at, raw, least, most)
	}
	return number, nil
}

// parseFloat reads a text, because JSON has no NaN. RabbitMQ closes the connection for a number that is not finite.
func parseFloat(at string, raw json.RawMessage, bits int) (float64, error) {
	text, err := parseJSON[string](at, raw)
	if err != nil {
		return 0, err
	}
	number, err := strconv.ParseFloat(text, bits)
	if err != nil || math.IsNaN(number) || math.IsInf(number, 0) {
		return 0, fmt.Errorf("%s is %.40q: it must be a finite number of %d bits, because RabbitMQ refuses any other",
			at, text, bits)
	}
	return number, nil
}

func parseBytes(at string, raw json.RawMessage) ([]byte, error) {
	text, err := parseJSON[string](at, raw)
	if err != nil {
		return nil, err
	}
	decoded, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("%s is not base64: %w", at, err)
	}
	return decoded, nil
}

func shortText(to *string) func(at string, raw json.RawMessage) error {
	return func(at string, raw json.RawMessage) error {
		text, err := parseJSON[string](at, raw)
		if err != nil {
			return err
		}
		if *to, err = letterline.DecodeText(at, text); err != nil {
			return err
		}
		if len(*to) > maxShortString {
			return fmt.Errorf("%s has %d bytes: AMQP allows %d", at, len(*to), maxShortString)
		}
		return nil
	}
}

// parseJSON reads a value that must not be null, which encoding/json takes for any type.
func parseJSON[T any](at string, raw json.RawMessage) (T, error) {
	var value T
	if string(raw) == "null" {
		return value, fmt.Errorf("%s is null: it must be a %T", at, value)
	}
	if err := json.Unmarshal(raw, &value); err != nil {
		return value, fmt.Errorf("%s must be a %T: %w", at, value, err)
	}
	return value, nil
}

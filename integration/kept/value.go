package kept

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// A value is an AMQP value with its type: an object with one field, the name of the Go type in which amqp091-go has it.
type value struct{ of any }

// A table has values with their types.
type table amqp091.Table

func (t table) MarshalJSON() ([]byte, error) {
	values := make(map[string]value, len(t))
	for name, v := range t {
		values[name] = value{v}
	}
	return json.Marshal(values)
}

func (t *table) UnmarshalJSON(text []byte) error {
	var values map[string]value
	if err := json.Unmarshal(text, &values); err != nil {
		return err
	}
	*t = table{}
	for name, v := range values {
		(*t)[name] = v.of
	}
	return nil
}

func (v value) MarshalJSON() ([]byte, error) {
	kind, of := fmt.Sprintf("%T", v.of), v.of
	switch typed := v.of.(type) {
	case nil:
		kind = "nil"
	case int64:
		of = strconv.FormatInt(typed, 10)
	case time.Time:
		kind, of = "time", typed.Unix()
	case amqp091.Decimal:
		kind, of = "decimal", [2]int64{int64(typed.Scale), int64(typed.Value)}
	case string:
		if !utf8.ValidString(typed) {
			kind, of = "latin1", []byte(typed)
		}
	case []byte:
		kind = "bytes"
		if utf8.Valid(typed) {
			kind, of = "text", string(typed)
		}
	case amqp091.Table:
		kind, of = "table", table(typed)
	case []any:
		kind = "array"
		values := make([]value, len(typed))
		for i, element := range typed {
			values[i] = value{element}
		}
		of = values
	}
	return json.Marshal(map[string]any{kind: of})
}

func (v *value) UnmarshalJSON(text []byte) error {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil {
		return err
	}
	for kind, raw := range object {
		read, known := readers[kind]
		if !known {
			return fmt.Errorf("the type %q is unknown", kind)
		}
		var err error
		v.of, err = read(raw)
		return err
	}
	return fmt.Errorf("%s is no value with a type", text)
}

var readers = map[string]func(json.RawMessage) (any, error){
	"nil":     func(json.RawMessage) (any, error) { return nil, nil },
	"bool":    plain[bool],
	"uint8":   plain[byte],
	"int8":    plain[int8],
	"int16":   plain[int16],
	"uint16":  plain[uint16],
	"int32":   plain[int32],
	"uint32":  plain[uint32],
	"float32": plain[float32],
	"float64": plain[float64],
	"string":  plain[string],
	"bytes":   plain[[]byte],
	"int64": func(raw json.RawMessage) (any, error) {
		return convert(raw, func(text string) (int64, error) { return strconv.ParseInt(text, 10, 64) })
	},
	"time": func(raw json.RawMessage) (any, error) {
		return convert(raw, func(seconds int64) (time.Time, error) { return time.Unix(seconds, 0), nil })
	},
	"decimal": func(raw json.RawMessage) (any, error) {
		return convert(raw, func(d [2]int32) (amqp091.Decimal, error) {
			return amqp091.Decimal{Scale: uint8(d[0]), Value: d[1]}, nil
		})
	},
	"latin1": func(raw json.RawMessage) (any, error) {
		return convert(raw, func(text []byte) (string, error) { return string(text), nil })
	},
	"text": func(raw json.RawMessage) (any, error) {
		return convert(raw, func(text string) ([]byte, error) { return []byte(text), nil })
	},
	"table": func(raw json.RawMessage) (any, error) {
		return convert(raw, func(t table) (amqp091.Table, error) { return amqp091.Table(t), nil })
	},
	"array": func(raw json.RawMessage) (any, error) {
		return convert(raw, func(values []value) ([]any, error) {
			array := make([]any, len(values))
			for i, v := range values {
				array[i] = v.of
			}
			return array, nil
		})
	},
}

func plain[T any](raw json.RawMessage) (any, error) {
	return convert(raw, func(v T) (T, error) { return v, nil })
}

func convert[From, To any](raw json.RawMessage, to func(From) (To, error)) (any, error) {
	var from From
	if err := json.Unmarshal(raw, &from); err != nil {
		return nil, err
	}
	return to(from)
}

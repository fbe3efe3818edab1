package letterline

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// redacted takes the place of a text. A number becomes 0, and true becomes false.
const redacted = "redacted"

// maxJSONDepth bounds the stack for a body.
const maxJSONDepth = 1000

// A Redaction replaces values by their names. First JSON and Table collect the values, then Hide finds them in texts.
type Redaction struct {
	rules map[string]bool // in lower case: whether a value was replaced
	hider hider
}

// NewRedaction returns a redaction by these rules. A rule is the name of a field or header, or the path of a field: its
// names, joined by points. Upper and lower case are the same, as for encoding/json.
func NewRedaction(rules []string) *Redaction {
	r := &Redaction{rules: map[string]bool{}}
	for _, rule := range rules {
		r.rules[strings.ToLower(rule)] = false
	}
	return r
}

// Used returns the rules that have replaced a value.
func (r *Redaction) Used() (used []string) {
	for rule, is := range r.rules {
		if is {
			used = append(used, rule)
		}
	}
	slices.Sort(used)
	return used
}

// selects reports whether a rule is the name, or the path.
func (r *Redaction) selects(path, name string) bool {
	for _, rule := range []string{strings.ToLower(path), strings.ToLower(name)} {
		if _, found := r.rules[rule]; found {
			r.rules[rule] = true
			return true
		}
	}
	return false
}

// Table replaces values of a table as Table returns it, and of the tables within it.
func (r *Redaction) Table(table map[string]any) { r.table("", table) }

func (r *Redaction) table(path string, table map[string]any) {
	for encoded, value := range table {
		name, err := DecodeText("", encoded)
		if err != nil {
			name = encoded
		}
		if at := join(path, name); r.selects(at, name) {
			r.collect(value)
			table[encoded] = tagged{"S": redacted}
		} else {
			r.value(at, value)
		}
	}
}

func (r *Redaction) value(path string, value any) {
	fields, _ := value.(tagged)
	if table, is := fields["F"].(map[string]any); is {
		r.table(path, table)
	}
	if array, is := fields["A"].([]any); is {
		for _, element := range array {
			r.value(path, element)
		}
	}
}

// collect adds the texts and numbers of a value.
func (r *Redaction) collect(value any) {
	fields, _ := value.(tagged)
	for tag, field := range fields {
		switch v := field.(type) {
		case map[string]any:
			for _, within := range v {
				r.collect(within)
			}
		case []any:
			for _, within := range v {
				r.collect(within)
			}
		default:
			if text, is := textOf(tag, field); is {
				r.hider.addText(text)
			} else if tag != "t" && tag != "V" {
				r.hider.addNumber(fmt.Sprint(number(field)))
			}
		}
	}
}

// textOf returns the text or the bytes of a header.
func textOf(tag string, field any) (text string, is bool) {
	text, is = field.(string)
	if !is {
		return "", false
	}
	var err error
	switch tag {
	case "S":
		text, err = DecodeText("", text)
	case "x":
		var bytes []byte
		bytes, err = base64.StdEncoding.DecodeString(text)
		text = string(bytes)
	default:
		return "", false
	}
	return text, err == nil
}

// number returns what a header's number is known by: a decimal has its scale beside it.
func number(field any) any {
	if decimal, is := field.([2]any); is {
		return decimal[1]
	}
	return field
}

// HideTable is Hide for the names, texts, bytes and numbers of a table. A name that was there before gets a number.
func (r *Redaction) HideTable(table map[string]any) map[string]any {
	hidden := make(map[string]any, len(table))
	for _, encoded := range slices.Sorted(maps.Keys(table)) {
		name := encoded
		if decoded, err := DecodeText("", encoded); err == nil {
			name = EncodeText(r.Hide(decoded))
		}
		free := name
		for i := 2; hidden[free] != nil; i++ {
			free = fmt.Sprintf("%s-%d", name, i)
		}
		hidden[free] = r.hideValue(table[encoded])
	}
	return hidden
}

func (r *Redaction) hideValue(value any) any {
	fields, _ := value.(tagged)
	hidden := tagged{}
	for tag, field := range fields {
		switch v := field.(type) {
		case map[string]any:
			hidden[tag] = r.HideTable(v)
			continue
		case []any:
			array := make([]any, len(v))
			for i, element := range v {
				array[i] = r.hideValue(element)
			}
			hidden[tag] = array
			continue
		}
		hidden[tag] = r.hideField(tag, field)
	}
	return hidden
}

// hideField hides one text, number or truth value.
func (r *Redaction) hideField(tag string, field any) any {
	if text, is := textOf(tag, field); is {
		text = r.Hide(text)
		if tag == "x" {
			return base64.StdEncoding.EncodeToString([]byte(text))
		}
		return EncodeText(text)
	}
	if tag == "t" || tag == "V" {
		return field
	}
	if text := fmt.Sprint(number(field)); r.Hide(text) == text {
		return field
	}
	switch v := field.(type) {
	case string: // a number of 64 bits
		return "0"
	case [2]any:
		return [2]any{v[0], 0}
	}
	return 0
}

// HideTexts is Hide for all texts that a pointer leads to: those in the fields of a struct, and in slices.
func (r *Redaction) HideTexts(pointer any) { r.hideTexts(reflect.ValueOf(pointer).Elem()) }

func (r *Redaction) hideTexts(value reflect.Value) {
	switch value.Kind() {
	case reflect.String:
		value.SetString(r.Hide(value.String()))
	case reflect.Struct:
		for i := range value.NumField() {
			if value.Type().Field(i).IsExported() {
				r.hideTexts(value.Field(i))
			}
		}
	case reflect.Slice:
		for i := range value.Len() {
			r.hideTexts(value.Index(i))
		}
	}
}

// Hide replaces the collected values in a text, in every spelling that the hider knows.
func (r *Redaction) Hide(text string) string { return r.hider.hide(text) }

// JSON replaces values of a body, which must be an object or an array, or empty. It leaves out white space between the
// values.
func (r *Redaction) JSON(body []byte) ([]byte, error) {
	return r.rewrite(body, func(w *writer, selected bool, value any) {
		if !selected {
			w.scalar(value)
			return
		}
		switch v := value.(type) {
		case string:
			r.hider.addText(v)
			w.scalar(redacted)
		case json.Number:
			r.hider.addNumber(v.String())
			w.WriteByte('0')
		case bool:
			w.scalar(false)
		default:
			w.scalar(v)
		}
	})
}

// HideJSON is Hide for the names, texts and numbers of a body that JSON has returned.
func (r *Redaction) HideJSON(body []byte) ([]byte, error) {
	return r.rewrite(body, func(w *writer, _ bool, value any) {
		switch v := value.(type) {
		case string:
			value = r.Hide(v)
		case json.Number:
			if r.Hide(v.String()) != v.String() {
				value = json.Number("0")
			}
		}
		w.scalar(value)
	})
}

// rewrite calls scalar for each scalar of a body, to write it.
func (r *Redaction) rewrite(body []byte, scalar func(w *writer, selected bool, value any)) ([]byte, error) {
	trimmed := bytes.TrimSpace(body)
	if len(trimmed) == 0 {
		return body, nil
	}
	if trimmed[0] != '{' && trimmed[0] != '[' {
		return nil, errors.New("it is no JSON object or array")
	}
	w := &writer{redaction: r, from: json.NewDecoder(bytes.NewReader(body)), write: scalar}
	w.from.UseNumber()
	if err := w.value("", false, 0); err != nil {
		return nil, err
	}
	if _, err := w.from.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("it has more than one JSON value")
	}
	return w.Bytes(), nil
}

// writer writes a body again, in the order of its fields.
type writer struct {
	bytes.Buffer
	redaction *Redaction
	from      *json.Decoder
	write     func(w *writer, selected bool, value any)
}

func (w *writer) value(path string, selected bool, depth int) error {
	token, err := w.from.Token()
	if err != nil {
		return fmt.Errorf("it is no JSON: %w", err)
	}
	start, is := token.(json.Delim)
	if !is {
		w.write(w, selected, token)
		return nil
	}
	if depth > maxJSONDepth {
		return fmt.Errorf("its JSON is nested deeper than %d", maxJSONDepth)
	}
	w.WriteByte(byte(start))
	for first := true; w.from.More(); first = false {
		if !first {
			w.WriteByte(',')
		}
		at, within := path, selected
		if start == '{' {
			key, err := w.from.Token()
			if err != nil {
				return fmt.Errorf("it is no JSON: %w", err)
			}
			name, _ := key.(string) // JSON has no other keys
			at = join(path, name)
			within = w.redaction.selects(at, name) || selected
			w.write(w, false, key)
			w.WriteByte(':')
		}
		if err := w.value(at, within, depth+1); err != nil {
			return err
		}
	}
	end, err := w.from.Token()
	if err != nil {
		return fmt.Errorf("it is no JSON: %w", err)
	}
	w.WriteByte(byte(end.(json.Delim)))
	return nil
}

// scalar writes a text, a number, true, false or null.
func (w *writer) scalar(value any) {
	encoder := json.NewEncoder(&w.Buffer)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(value) // these cannot fail
	w.Truncate(w.Len() - 1)   // the line feed
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

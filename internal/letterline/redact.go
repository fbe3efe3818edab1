package letterline

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

const (
	// redacted takes the place of a text. A number becomes 0, and true becomes false.
	redacted = "redacted"
	// leastText and leastNumber are how many bytes a value has at least that is also searched for in other texts:
	// shorter ones are parts of other words.
	leastText   = 3
	leastNumber = 5
	// maxJSONDepth bounds the stack for a body.
	maxJSONDepth = 1000
)

// A Redaction replaces values by their names. First JSON and Table collect the values, then Hide finds them in texts.
type Redaction struct {
	rules   map[string]bool   // in lower case: whether a value was replaced
	secrets map[string]string // what takes the place of a value
	hider   *strings.Replacer
}

// NewRedaction returns a redaction by these rules. A rule is the name of a field or header, or the path of a field: its
// names, joined by points. Upper and lower case are the same, as for encoding/json.
func NewRedaction(rules []string) *Redaction {
	r := &Redaction{rules: map[string]bool{}, secrets: map[string]string{}}
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

func (r *Redaction) add(secret, replacement string, least int) {
	if len(secret) >= least && secret != redacted {
		r.secrets[secret] = replacement
	}
}

// Hide replaces the collected values in a text.
func (r *Redaction) Hide(text string) string {
	if len(r.secrets) == 0 {
		return text
	}
	if r.hider == nil {
		var pairs []string
		for _, secret := range slices.SortedFunc(maps.Keys(r.secrets), func(a, b string) int {
			return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) // one may be a part of another
		}) {
			pairs = append(pairs, secret, r.secrets[secret])
		}
		r.hider = strings.NewReplacer(pairs...)
	}
	return r.hider.Replace(text)
}

// Table replaces values of a table as Table returns it, and of the tables within it.
func (r *Redaction) Table(table map[string]any) { r.table("", table) }

func (r *Redaction) table(path string, table map[string]any) {
	for name, value := range table {
		if at := join(path, name); r.selects(at, name) {
			r.collect(value)
			table[name] = tagged{"S": redacted}
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

// collect adds all texts of a value.
func (r *Redaction) collect(value any) {
	switch v := value.(type) {
	case string:
		if text, err := DecodeText("", v); err == nil {
			r.add(text, redacted, leastText)
		}
	case map[string]any:
		for _, within := range v {
			r.collect(within)
		}
	case []any:
		for _, within := range v {
			r.collect(within)
		}
	}
}

// HideTable is Hide for the texts of a table.
func (r *Redaction) HideTable(value any) {
	switch v := value.(type) {
	case map[string]any:
		for name, within := range v {
			if text, is := within.(string); is && name == "S" && !strings.HasPrefix(text, base64Prefix) {
				v[name] = r.Hide(text)
			} else {
				r.HideTable(within)
			}
		}
	case []any:
		for _, within := range v {
			r.HideTable(within)
		}
	}
}

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
			r.add(v, redacted, leastText)
			w.scalar(redacted)
		case json.Number:
			r.add(v.String(), "0", leastNumber)
			w.WriteByte('0')
		case bool:
			w.scalar(false)
		default:
			w.scalar(v)
		}
	})
}

// HideJSON is Hide for the texts of a body that JSON has returned.
func (r *Redaction) HideJSON(body []byte) ([]byte, error) {
	return r.rewrite(body, func(w *writer, _ bool, value any) {
		if text, is := value.(string); is {
			value = r.Hide(text)
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

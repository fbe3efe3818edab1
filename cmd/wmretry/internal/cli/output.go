package cli

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/template"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/tieredretry/watermill-retry/internal/lettertext"
	"github.com/tieredretry/watermill-retry/internal/shell"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// outputText has what commands print of values with many parts, as templates.
//
//go:embed output.txt
var outputText string

const labelWidth = 20

// text returns a value by the template with this name.
func (e *env) text(name string, value any) string {
	var out strings.Builder
	parsed := template.Must(template.New("output.txt").Funcs(e.functions()).Parse(outputText))
	if err := parsed.ExecuteTemplate(&out, name, value); err != nil {
		panic(err)
	}
	return out.String()
}

// functions are those of the templates.
func (e *env) functions() template.FuncMap {
	painted := func(colour text.Color) func(string) string {
		return func(s string) string { return e.paint(colour, s) }
	}
	shown := func(value any) string {
		if at, is := value.(time.Time); is {
			return e.time(at)
		}
		return safe(fmt.Sprint(value))
	}
	label := func(name any) string { return e.paint(text.FgCyan, text.Pad(shown(name), labelWidth, ' ')) }
	line := func(name string, value any) string { return "  " + label(name) + " " + shown(value) + "\n" }
	return template.FuncMap{
		"bold": painted(text.Bold), "red": painted(text.FgRed), "yellow": painted(text.FgYellow),
		"green": painted(text.FgGreen), "cyan": painted(text.FgCyan),
		"safe": shown, "label": label, "line": line, "word": shellWord, "number": thousands, "plural": plural,
		"trace": parseTrace, "waiting": e.waitingTable,
		"causes":  func(all []letters.Group) string { return e.causes("DIED AGAIN", all) },
		"advised": e.advised,
		"count":   func(n int) string { return fmt.Sprintf("%11s", thousands(n)) },
		"some": func(name string, value any) string {
			if reflect.ValueOf(value).IsZero() {
				return ""
			}
			return line(name, value)
		},
		"header": func(name string, value any) string {
			kind, content := lettertext.Header(value)
			return "  " + label(name) + " " + e.paint(text.Faint, text.Pad(kind, 9, ' ')) + " " + safe(content) + "\n"
		},
		"body": func(payload []byte) string {
			form, content := lettertext.Body(payload)
			title := fmt.Sprintf("Body (%s, %s)", plural(len(payload), "byte", "bytes"), form)
			if content != "" && !strings.HasSuffix(content, "\n") {
				content += "\n"
			}
			return e.paint(text.Bold, title) + "\n" + safeLines(content)
		},
		"status": func(s letters.Status) string { return e.statusText(s, true) },
		"head": func(d deadletter.Difference) string {
			d.Reason, d.Advice = "", ""
			return d.String()
		},
		"quote": func(s string) string { return safe(shell.Quote(s)) },
		"join":  func(all []string) string { return strings.Join(all, ", ") },
		"json": func(value any) string {
			encoded, _ := json.Marshal(value)
			return safe(string(encoded))
		},
	}
}

// parseTrace returns the IDs of the trace and of the span of W3C Trace Context, or none.
func parseTrace(traceparent string) []string {
	parts := strings.Split(traceparent, "-")
	if len(parts) < 4 || len(parts[1]) != 32 || len(parts[2]) != 16 ||
		strings.Trim(parts[1]+parts[2], "0123456789abcdef") != "" {
		return nil
	}
	return parts[1:3]
}

// output prints a value as a line of JSON with --json, and otherwise its text.
func (e *env) output(value any, words func() string) error {
	if e.json {
		return e.printJSON(value)
	}
	_, err := io.WriteString(e.stdout, words())
	return err
}

package cli

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/letters"
)

// The forms in which show prints a body.
const (
	bodyAuto = "auto"
	bodyText = "text"
	bodyJSON = "json"
	bodyHex  = "hex"
	bodyRaw  = "raw"
	bodyNone = "none"
)

var bodies = []string{bodyAuto, bodyText, bodyJSON, bodyHex, bodyRaw, bodyNone}

func newShowCommand(l *letterCommand) *cobra.Command {
	var body string
	c := l.command(&cobra.Command{
		Use:   "show",
		Short: "Show one letter: failure record, redrives, properties, headers, body",
		Long: `Shows all that is known of a letter. The letter stays where it is. The body is printed as indented
JSON, as text or as bytes in hexadecimal, whichever fits. Control characters are escaped. --body raw prints the bytes
of the body and nothing else, to a file or a pipe.

Letters of the same message have the same ID: all of them are shown.`,
		Example: `  wmretry dead show orders 5d9f6b1e-0c53-4d0e-a4cb-6ab61e1b1a30
  wmretry dead show orders 5d9f6b1e-0c53-4d0e-a4cb-6ab61e1b1a30 --body hex
  wmretry dead show orders 5d9f6b1e-0c53-4d0e-a4cb-6ab61e1b1a30 --body raw > body.bin`,
		RunE: func(c *cobra.Command, args []string) error { return l.show(c, args, body) },
	}, "ID")
	c.Flags().StringVar(&body, "body", bodyAuto, "form of the body: "+strings.Join(bodies, ", "))
	_ = c.RegisterFlagCompletionFunc("body", cobra.FixedCompletions(bodies, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func (l *letterCommand) show(c *cobra.Command, args []string, body string) error {
	switch {
	case !slices.Contains(bodies, body):
		return usage("--body %q is not one of %s", body, strings.Join(bodies, ", "))
	case body == bodyRaw && l.outTerminal:
		return usage("--body raw does not print to a terminal, where the bytes could do anything: redirect it to " +
			"a file, or use --body text")
	}
	queue, rest := l.queue(args)
	n := 0
	for letter, err := range l.browse(c.Context(), queue, letters.Filter{IDs: ids(rest)}) {
		if err != nil {
			return err
		}
		if n++; n > 1 && body != bodyRaw && !l.json {
			_, _ = fmt.Fprintln(l.stdout, "\n"+l.paint(text.Faint, "another letter of the same message"))
		}
		switch {
		case body == bodyRaw && n > 1:
			_, _ = fmt.Fprintf(l.stderr, "wmretry: another letter has the same id: its body is not printed\n")
		case body == bodyRaw:
			_, err = l.stdout.Write(letter.Payload)
		case l.json:
			err = l.printJSON(shown{letter, headerTypes(letter.Headers)})
		default:
			err = l.print(letter, body)
		}
		if err != nil {
			return err
		}
	}
	if n == 0 {
		return l.noID(queue, rest[0])
	}
	return nil
}

// shown is a letter as JSON, which has fewer types than AMQP.
type shown struct {
	*letters.Letter
	HeaderTypes map[string]string `json:"header_types,omitempty"`
}

func headerTypes(headers map[string]any) map[string]string {
	types := map[string]string{}
	for key, value := range headers {
		types[key], _ = letters.HeaderText(value)
	}
	return types
}

// print prints a letter for people.
func (l *letterCommand) print(letter *letters.Letter, body string) error {
	s := section{env: l.env}
	s.title("Letter")
	s.field("id", letter.ID)
	s.field("queue", letter.Queue)
	s.field("goes back to", orUnknown(letter.Target))
	s.field("kind", kindText(letter.Kind))
	if trace, span, found := parseTrace(letter.Record.Traceparent); found {
		s.field("trace id", trace)
		s.field("span id", span)
	} else if trace, span, found := parseTrace(letter.Metadata["traceparent"]); found {
		s.field("trace id", trace)
		s.field("producer's span id", span)
	}
	l.printRecord(&s, letter)
	l.printRedrives(&s, letter)
	s.title("Properties")
	for _, key := range slices.Sorted(maps.Keys(letter.Properties)) {
		s.field(key, letter.Properties[key])
	}
	s.title("Headers")
	for _, key := range slices.Sorted(maps.Keys(letter.Metadata)) {
		s.typed(key, "string", letter.Metadata[key])
	}
	for _, key := range slices.Sorted(maps.Keys(letter.Headers)) {
		kind, value := letters.HeaderText(letter.Headers[key])
		s.typed(key, kind, value)
	}
	if body != bodyNone {
		form, content := bodyOf(letter.Payload, body)
		s.title(fmt.Sprintf("Body (%s, %s)", plural(len(letter.Payload), "byte", "bytes"), form))
		s.text.WriteString(content)
		if content != "" && !strings.HasSuffix(content, "\n") {
			s.text.WriteByte('\n')
		}
	}
	_, err := io.WriteString(l.stdout, s.text.String())
	return err
}

func (l *letterCommand) printRecord(s *section, letter *letters.Letter) {
	r := letter.Record
	s.title("Failure record")
	if letter.Kind == letters.Unknown {
		s.field("", "none")
		return
	}
	s.field("failures", strconv.Itoa(r.Failures))
	s.optional("snoozes", r.Snoozes > 0, strconv.Itoa(r.Snoozes))
	s.optional("first arrival", !r.FirstArrivedAt.IsZero(), l.time(r.FirstArrivedAt))
	s.optional("first failure", !r.FirstFailedAt.IsZero(), l.time(r.FirstFailedAt))
	s.optional("last failure", !r.LastFailedAt.IsZero(), l.time(r.LastFailedAt))
	s.optional("was due", !r.DueAt.IsZero(), l.time(r.DueAt))
	s.optional("delay left", r.Remaining > 0, r.Remaining.String())
	s.optional("dead reason", r.DeadReason != "", string(r.DeadReason))
	s.optional("left off", r.LeftOff != "", r.LeftOff)
	s.optional("error type", r.ErrorType != "", r.ErrorType)
	s.optional("reason", r.Reason != "", r.Reason)
	s.optional("topic", r.Topic != "", r.Topic)
	s.optional("handler", r.Handler != "", r.Handler)
	s.optional("traceparent", r.Traceparent != "", r.Traceparent)
	s.optional("subscriber", r.Subscriber != "", r.Subscriber)
}

func (l *letterCommand) printRedrives(s *section, letter *letters.Letter) {
	if letter.Redriven.Times == 0 {
		return
	}
	s.title("Redrives (" + plural(letter.Redriven.Times, "time", "times") + ")")
	for _, r := range letter.Redriven.Redrives {
		line := "by " + orUnknown(r.By)
		if r.Note != "" {
			line += ", " + strconv.Quote(r.Note)
		}
		line += ", after " + plural(r.Failures, "failure", "failures")
		if r.DeadReason != "" {
			line += " (" + string(r.DeadReason) + ")"
		}
		if r.Reason != "" {
			line += ": " + r.Reason
		}
		s.field(l.time(r.At), line)
	}
}

// section collects titles and fields.
type section struct {
	env  *env
	text strings.Builder
}

const labelWidth = 20

func (s *section) title(name string) {
	if s.text.Len() > 0 {
		s.text.WriteByte('\n')
	}
	s.text.WriteString(s.env.paint(text.Bold, name) + "\n")
}

func (s *section) field(name, value string) {
	_, _ = fmt.Fprintf(&s.text, "  %s %s\n", s.env.paint(text.FgCyan, text.Pad(safe(name), labelWidth, ' ')),
		safe(value))
}

func (s *section) optional(name string, is bool, value string) {
	if is {
		s.field(name, value)
	}
}

func (s *section) typed(name, kind, value string) {
	_, _ = fmt.Fprintf(&s.text, "  %s %s %s\n", s.env.paint(text.FgCyan, text.Pad(safe(name), labelWidth, ' ')),
		s.env.paint(text.Faint, text.Pad(kind, 9, ' ')), safe(value))
}

func orUnknown(s string) string {
	if s == "" {
		return "(unknown)"
	}
	return s
}

func kindText(kind letters.Kind) string {
	return map[letters.Kind]string{
		letters.Library: "given up by the retry middleware",
		letters.Broker:  "dead-lettered by the broker",
		letters.Poison:  "given up by Watermill's PoisonQueue",
		letters.Orphan:  "orphan: its work queue was gone when its delay was over",
		letters.Unknown: "unknown: it has no record of a failure",
	}[kind]
}

// parseTrace reads W3C Trace Context.
func parseTrace(traceparent string) (trace, span string, found bool) {
	parts := strings.Split(traceparent, "-")
	if len(parts) < 4 || len(parts[1]) != 32 || len(parts[2]) != 16 ||
		strings.Trim(parts[1]+parts[2], "0123456789abcdef") != "" {
		return "", "", false
	}
	return parts[1], parts[2], true
}

// bodyOf returns the form in which a body is printed, and its text.
func bodyOf(body []byte, form string) (string, string) {
	if form == bodyAuto {
		form = bestForm(body)
	}
	switch form {
	case bodyJSON:
		var indented bytes.Buffer
		if err := json.Indent(&indented, body, "", "  "); err != nil {
			return "text: it is not JSON, " + safe(err.Error()), safeLines(string(body))
		}
		return "JSON", safeLines(indented.String())
	case bodyHex:
		return "hex", hex.Dump(body)
	}
	return "text", safeLines(string(body))
}

func bestForm(body []byte) string {
	switch trimmed := bytes.TrimSpace(body); {
	case len(trimmed) > 0 && (trimmed[0] == '{' || trimmed[0] == '[') && json.Valid(body):
		return bodyJSON
	case !utf8.Valid(body):
		return bodyHex
	}
	odd := 0
	for _, r := range string(body) {
		if !unicode.IsPrint(r) && r != '\n' && r != '\t' && r != '\r' {
			odd++
		}
	}
	if odd*10 > len(body) {
		return bodyHex
	}
	return bodyText
}

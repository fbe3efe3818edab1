package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/build"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/lettertext"
	"github.com/tieredretry/watermill-retry/letters"
)

func newShowCommand(e *env) *cobra.Command {
	var f testFlags
	var c *cobra.Command
	flags := variables{"go-test": &f.config.Name, "redact": (*list)(&f.config.Redact),
		"drop-payload": &f.config.DropPayload, "overwrite": &f.overwrite}
	c = e.command("dead show "+e.of()+" ID", flags, func(ctx context.Context, args []string) error {
		given, use := c.Flags().Changed, e.show
		check := func() error {
			if given("redact") || given("drop-payload") || given("overwrite") {
				return usage("--redact, --drop-payload and --overwrite need --go-test: what is shown is not redacted")
			}
			return nil
		}
		if given("go-test") {
			check = f.check
			use = func(ctx context.Context, at place, args []string) error { return e.goTest(ctx, at, args[1], &f) }
		}
		return e.on(check, use)(ctx, args)
	})
	return c
}

func (e *env) show(ctx context.Context, at place, args []string) error {
	n := 0
	for letter, err := range at.Browse(ctx, at.queue, letters.Filter{IDs: ids(args[1:])}) {
		if err != nil {
			return e.explain(err)
		}
		if n++; n > 1 && !e.json {
			_, _ = fmt.Fprintln(e.stdout, "\n"+e.paint(text.Faint, "another letter of the same message"))
		}
		if e.json {
			err = e.printJSON(shown{letter, letter.Cause().ID(), headerTypes(letter.Headers)})
		} else {
			err = e.printLetter(letter)
		}
		if err != nil {
			return err
		}
	}
	if n == 0 {
		return e.noLetter(at.queue, args[1])
	}
	return nil
}

func (e *env) noLetter(queue, id string) error {
	return exit(codeNothing, fmt.Errorf("no letter in %s has the id %s; `%s` prints the ids", safe(queue), safe(id),
		e.listCommand(queue)))
}

// shown is a letter as JSON, which has fewer types than AMQP.
type shown struct {
	*letters.Letter
	Cause       string            `json:"cause"` // the ID
	HeaderTypes map[string]string `json:"header_types,omitempty"`
}

func headerTypes(headers map[string]any) map[string]string {
	types := map[string]string{}
	for key, value := range headers {
		types[key], _ = lettertext.Header(value)
	}
	return types
}

// printLetter prints a letter for people.
func (e *env) printLetter(letter *letters.Letter) error {
	s := section{env: e}
	s.title("Letter")
	s.field("id", letter.ID)
	s.field("queue", letter.Queue)
	s.field("goes back to", cmp.Or(letter.Target, "(unknown)"))
	s.field("kind", kindTexts[letter.Kind])
	if trace, span, found := parseTrace(letter.Record.Traceparent); found {
		s.field("trace id", trace)
		s.field("span id", span)
	} else if trace, span, found := parseTrace(letter.Metadata["traceparent"]); found {
		s.field("trace id", trace)
		s.field("producer's span id", span)
	}
	s.field("cause", letter.Cause().ID())
	e.printRecord(&s, letter)
	e.printRedrives(&s, letter)
	if len(letter.Properties) > 0 {
		s.title("Properties")
	}
	for _, key := range slices.Sorted(maps.Keys(letter.Properties)) {
		s.field(key, letter.Properties[key])
	}
	s.title("Headers")
	for _, key := range slices.Sorted(maps.Keys(letter.Metadata)) {
		s.typed(key, "string", letter.Metadata[key])
	}
	for _, key := range slices.Sorted(maps.Keys(letter.Headers)) {
		kind, value := lettertext.Header(letter.Headers[key])
		s.typed(key, kind, value)
	}
	form, content := lettertext.Body(letter.Payload)
	s.title(fmt.Sprintf("Body (%s, %s)", plural(len(letter.Payload), "byte", "bytes"), form))
	s.text.WriteString(safeLines(content))
	if content != "" && !strings.HasSuffix(content, "\n") {
		s.text.WriteByte('\n')
	}
	_, err := io.WriteString(e.stdout, s.text.String())
	return err
}

func (e *env) printRecord(s *section, letter *letters.Letter) {
	r := letter.Record
	s.title("Failure record")
	if letter.Kind == letters.Unknown {
		s.field("", "none")
		return
	}
	s.field("failures", strconv.Itoa(r.Failures))
	s.optional("snoozes", r.Snoozes > 0, strconv.Itoa(r.Snoozes))
	s.optional("first arrival", !r.FirstArrivedAt.IsZero(), e.time(r.FirstArrivedAt))
	s.optional("first failure", !r.FirstFailedAt.IsZero(), e.time(r.FirstFailedAt))
	s.optional("last failure", !r.LastFailedAt.IsZero(), e.time(r.LastFailedAt))
	s.optional("was due", !r.DueAt.IsZero(), e.time(r.DueAt))
	s.optional("delay left", r.Remaining > 0, r.Remaining.String())
	s.optional("dead reason", r.DeadReason != "", string(r.DeadReason))
	s.optional("left off", r.LeftOff != "", r.LeftOff)
	s.optional("error type", r.ErrorType != "", r.ErrorType)
	s.optional("reason", r.Reason != "", r.Reason)
	s.optional("topic", r.Topic != "", r.Topic)
	s.optional("handler", r.Handler != "", r.Handler)
	s.optional("key", r.Key != "", r.Key)
	s.optional("traceparent", r.Traceparent != "", r.Traceparent)
	s.optional("subscriber", r.Subscriber != "", r.Subscriber)
}

func (e *env) printRedrives(s *section, letter *letters.Letter) {
	if letter.Redriven.Times == 0 {
		return
	}
	s.title("Redrives (" + plural(letter.Redriven.Times, "time", "times") + ")")
	for _, r := range letter.Redriven.Redrives {
		line := "by " + cmp.Or(r.By, "(unknown)")
		if r.Note != "" {
			line += ", " + strconv.Quote(r.Note)
		}
		if r.Again {
			line += ", to be handled again"
		}
		line += ", after " + plural(r.Failures, "failure", "failures")
		if r.DeadReason != "" {
			line += " (" + string(r.DeadReason) + ")"
		}
		if r.Reason != "" {
			line += ": " + r.Reason
		}
		s.field(e.time(r.At), line)
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

// parseTrace reads W3C Trace Context.
func parseTrace(traceparent string) (trace, span string, found bool) {
	parts := strings.Split(traceparent, "-")
	if len(parts) < 4 || len(parts[1]) != 32 || len(parts[2]) != 16 ||
		strings.Trim(parts[1]+parts[2], "0123456789abcdef") != "" {
		return "", "", false
	}
	return parts[1], parts[2], true
}

// kindTexts are the kinds in words.
var kindTexts = map[letters.Kind]string{
	letters.Library: "given up by the retry middleware",
	letters.Broker:  "dead-lettered by the broker",
	letters.Poison:  "given up by Watermill's PoisonQueue",
	letters.Orphan:  "orphan: its work queue was gone when its delay was over",
	letters.Unknown: "unknown: it has no record of a failure",
}

// testFlags make a test of a letter.
type testFlags struct {
	config    letters.GoTestConfig
	overwrite bool
}

// check completes the configuration of the test. Its package is that of the Go files in this folder that are built
// here.
func (f *testFlags) check() (err error) {
	found, _ := build.ImportDir(".", 0) // with an error it has what the other files state
	f.config.Package = found.Name
	if err = f.config.Validate(); err != nil {
		err = exit(codeUsage, faults.In("GoTestConfig", err))
	}
	return err
}

// goTest writes a test of the newest letter with an ID.
func (e *env) goTest(ctx context.Context, at place, id string, f *testFlags) error {
	var newest *letters.Letter
	n := 0
	for letter, err := range at.Browse(ctx, at.queue, letters.Filter{IDs: ids([]string{id})}) {
		if err != nil {
			return e.explain(err)
		}
		if n++; newest == nil || !letter.DeadAt().Before(newest.DeadAt()) {
			newest = letter
		}
	}
	if n == 0 {
		return e.noLetter(at.queue, id)
	}
	test, err := newest.GoTest(f.config)
	if err != nil {
		return err
	}
	if err := test.Write(".", f.overwrite); errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w; --overwrite replaces it", err)
	} else if err != nil {
		return err
	}
	files := slices.Sorted(maps.Keys(test.Files))
	unused := slices.DeleteFunc(slices.Clone(f.config.Redact), func(rule string) bool {
		return slices.Contains(test.Redacted, strings.ToLower(rule))
	})
	if e.json {
		return e.printJSON(map[string]any{
			"command": "show", "queue": at.queue, "test": test.Name, "files": files, "redacted": test.Redacted, "letters": n,
		})
	}
	if n > 1 {
		_, _ = fmt.Fprintf(e.stderr, "wmretry: %d letters have this id: the test has the newest\n", n)
	}
	if len(unused) > 0 {
		_, _ = fmt.Fprintf(e.stderr, "wmretry: warning: the letter has no field, metadata or property %s\n",
			safe(strings.Join(unused, ", ")))
	}
	_, err = fmt.Fprintf(e.stdout, "%s and %s written; put the handler into %s\n", files[0], files[1], test.Name)
	if err == nil && len(f.config.Redact) > 0 {
		_, err = fmt.Fprintf(e.stdout, "redacted: %s\n", safe(cmp.Or(strings.Join(test.Redacted, ", "), "nothing")))
	}
	return err
}

package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"

	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/lettertext"
	"github.com/tieredretry/watermill-retry/internal/shell"
)

// env is what a command gets from its process: the standard streams, the environment and the global flags.
type env struct {
	stdin          *os.File
	stdout, stderr io.Writer
	inTerminal     bool // stdin is a terminal
	outTerminal    bool // stdout is a terminal
	errTerminal    bool // stderr is a terminal
	width          int  // the width of stdout, in columns; 0 where it is no terminal
	colours        bool // stdout may have colours

	prepared  bool          // a command was found, and its flags and arguments were read
	kind      *backend.Kind // the backend that the flags name
	help      map[string]helpPage
	args      []string // the arguments of the command
	flags     flags
	json      bool     // --json
	passwords []string // for scrub
	where     string   // the address of the backend that is reached, without user and password

	guesses bool // the address of the management API is derived from that of the broker
}

const defaultPrefix = "retry"

type flags struct {
	urls                                  []string
	passwordFile, management, prefix      string
	group, table                          string
	caFile, certFile, keyFile, serverName string
	insecure, verbose, anyLimit, asIs     bool
}

func newEnv() *env {
	e := &env{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, kind: backend.RabbitMQ}
	e.inTerminal = term.IsTerminal(int(os.Stdin.Fd()))
	e.outTerminal = term.IsTerminal(int(os.Stdout.Fd()))
	e.errTerminal = term.IsTerminal(int(os.Stderr.Fd()))
	if e.outTerminal {
		e.width = 80
		if width, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil && width > 0 {
			e.width = width
		}
	}
	return e
}

// globalFlags are those of all commands.
func (e *env) globalFlags() variables {
	f := &e.flags
	f.prefix = defaultPrefix
	all := variables{
		"url": &f.urls, "password-file": &f.passwordFile, "prefix": &f.prefix, "ca-file": &f.caFile,
		"cert-file": &f.certFile, "key-file": &f.keyFile, "server-name": &f.serverName,
		"insecure-skip-verify": &f.insecure, "json": &e.json, "verbose,v": &f.verbose,
	}
	if e.kind.Groups {
		all["consumer-group"], all["table"] = &f.group, &f.table
	} else {
		all["management"], all["any-limit"] = &f.management, &f.anyLimit
	}
	return all
}

// enableColours is the setting of a whole process.
var enableColours = sync.OnceFunc(text.EnableColors)

// prepare runs before each command, after the flags are parsed.
func (e *env) prepare() {
	e.prepared = true
	// https://no-color.org
	e.colours = e.outTerminal && !e.json && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	enableColours() // paint decides
}

func (e *env) logger() watermill.LoggerAdapter {
	if !e.flags.verbose {
		return watermill.NopLogger{}
	}
	return watermill.NewStdLoggerWithOut(scrubbed{e}, true, false)
}

// scrubbed is stderr without passwords, and without what could change the terminal.
type scrubbed struct{ e *env }

func (s scrubbed) Write(line []byte) (int, error) {
	_, err := io.WriteString(s.e.stderr, s.e.printable(string(line)))
	return len(line), err
}

// prefix is that of the apps.
func (e *env) prefix() string { return cmp.Or(e.flags.prefix, defaultPrefix) }

// paint colours a text where colours are on. No colour is 0.
func (e *env) paint(colour text.Color, s string) string {
	if !e.colours || colour == 0 || s == "" {
		return s
	}
	return colour.Sprint(s)
}

// printJSON prints a value as one line of JSON.
func (e *env) printJSON(value any) error { return e.jsonLine(e.stdout, value) }

// jsonLine writes a value as one line of JSON. What could change a terminal is escaped, which JSON reads as the same
// text.
func (e *env) jsonLine(to io.Writer, value any) error {
	encoder := json.NewEncoder(jsonLines{to})
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// table returns a table with these columns: Render returns its text. Those of numbers begin with >.
func (e *env) table(columns ...string) table.Writer {
	t := table.NewWriter()
	var numbers []table.ColumnConfig
	for i, name := range columns {
		if title, is := strings.CutPrefix(name, ">"); is {
			columns[i], numbers = title, append(numbers, table.ColumnConfig{Number: i + 1, Align: text.AlignRight})
		}
	}
	t.SetColumnConfigs(numbers)
	t.SetStyle(table.StyleLight)
	style := t.Style()
	style.Options = table.Options{SeparateHeader: true}
	style.Box.PaddingLeft = ""
	style.Box.PaddingRight = "  "
	style.Format.Header = text.FormatDefault
	if e.colours {
		style.Color.Header = text.Colors{text.Bold}
	}
	t.AppendHeader(e.row(0, columns...))
	t.SuppressTrailingSpaces()
	return t
}

var plural, thousands = lettertext.Plural, lettertext.Number

// safe escapes what could change the terminal: control characters, characters without a glyph, and bytes that are not
// UTF-8. Letters come from elsewhere.
func safe(s string) string { return escape(s, false) }

// safeLines is safe, and keeps line feeds and tabs.
func safeLines(s string) string { return escape(s, true) }

// shellWord quotes a text for a POSIX shell where it must be quoted, as one word of a command that is printed.
func shellWord(s string) string { return safe(shell.Word(s)) }

func escape(s string, lines bool) string {
	plain := func(r rune) bool { return unicode.IsPrint(r) || lines && (r == '\n' || r == '\t') }
	var text strings.Builder
	for rest := s; rest != ""; {
		r, size := utf8.DecodeRuneInString(rest)
		if plain(r) && (r != utf8.RuneError || size > 1) {
			text.WriteString(rest[:size])
		} else {
			quoted := strconv.Quote(rest[:size])
			text.WriteString(quoted[1 : len(quoted)-1])
		}
		rest = rest[size:]
	}
	return text.String()
}

// escapeJSON escapes what encoding/json leaves as it is, and could change the terminal.
func escapeJSON(line string) string {
	odd := func(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }
	if strings.IndexFunc(line, odd) < 0 {
		return line
	}
	var text strings.Builder
	for _, r := range line {
		if !odd(r) {
			text.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			_, _ = fmt.Fprintf(&text, `\u%04x`, unit)
		}
	}
	return text.String()
}

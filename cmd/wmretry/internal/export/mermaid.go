package export

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
)

// Mermaid writes a diagram: https://mermaid.js.org/syntax/flowchart.html. Exchanges are hexagons, work queues are boxes with a double
// border, other queues are boxes. Dotted lines are messages that the broker moves by itself.
func Mermaid(to io.Writer, t Topology) error {
	all, err := t.merged()
	if err != nil {
		return err
	}
	var s strings.Builder
	s.WriteString("flowchart LR\n")
	ids := map[string]string{}
	id := func(kind, name string) string {
		key := kind + name
		if ids[key] == "" {
			ids[key] = fmt.Sprintf("%s%d", kind, len(ids))
		}
		return ids[key]
	}
	works := map[string]bool{}
	for _, w := range t.Wanted {
		works[w.Queue.Name] = true
	}
	for _, e := range all.Exchanges {
		_, _ = fmt.Fprintf(&s, "  %s{{%s}}\n", id("x", e.Name), label(e.Name))
	}
	for _, q := range all.Queues {
		form := "  %s[%s]\n"
		if works[q.Name] {
			form = "  %s[[%s]]\n"
		}
		_, _ = fmt.Fprintf(&s, form, id("q", q.Name), label(q.Name))
	}
	for _, b := range all.Bindings {
		if b.Key == "" {
			_, _ = fmt.Fprintf(&s, "  %s --> %s\n", id("x", b.Exchange), id("q", b.Queue))
			continue
		}
		_, _ = fmt.Fprintf(&s, "  %s -- %s --> %s\n", id("x", b.Exchange), label(b.Key), id("q", b.Queue))
	}
	for _, e := range all.Exchanges {
		if other, ok := e.Arguments["alternate-exchange"].(string); ok {
			_, _ = fmt.Fprintf(&s, "  %s -. \"no such key\" .-> %s\n", id("x", e.Name), id("x", other))
		}
	}
	for _, q := range all.Queues {
		other, ok := q.Arguments["x-dead-letter-exchange"].(string)
		if !ok || ids["x"+other] == "" {
			continue
		}
		why := "given up by the broker"
		if ttl, ok := q.Arguments["x-message-ttl"].(int64); ok {
			why = "after " + backoff.Tier(time.Duration(ttl)*time.Millisecond).String()
		}
		_, _ = fmt.Fprintf(&s, "  %s -. %s .-> %s\n", id("q", q.Name), label(why), id("x", other))
	}
	_, err = io.WriteString(to, s.String())
	return err
}

// label quotes a text: https://mermaid.js.org/syntax/flowchart.html#entity-codes-to-escape-characters.
func label(text string) string {
	var s strings.Builder
	for _, r := range text {
		switch {
		case r == '"' || r == '#' || r == '<' || r == '>' || r == '&' || r == '`' || r == '\\' || r < ' ' || r == 0x7f:
			_, _ = fmt.Fprintf(&s, "#%d;", r)
		default:
			s.WriteRune(r)
		}
	}
	return `"` + s.String() + `"`
}

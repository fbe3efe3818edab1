package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/internal/each"
	"github.com/tieredretry/watermill-retry/internal/lettertext"
	"github.com/tieredretry/watermill-retry/letters"
)

func newListCommand(e *env) *cobra.Command {
	var (
		o     letters.Discard // its Filter and Limit
		group bool
	)
	flags := filterFlags(&o.Filter, variables{"group": &group, "limit": &o.Limit})
	validate := func() error { return o.Validate() }
	list := func(ctx context.Context, at place, _ []string) error { return e.list(ctx, at, o, group) }
	return e.command("dead list "+e.of(), flags, e.on(flags, validate, list))
}

func (e *env) list(ctx context.Context, at place, o letters.Discard, group bool) error {
	var groups letters.Groups
	rows := rows{env: e}
	n, cut := 0, false
	for letter, err := range at.Browse(ctx, at.queue, o.Filter) {
		if err != nil {
			return errors.Join(e.printGroups(groups.Sorted()), e.explain(err))
		}
		if o.Limit > 0 && n == o.Limit {
			cut = true
			break
		}
		n++
		if group {
			groups.Add(letter)
		} else if err := rows.print(letter); err != nil {
			return err
		}
	}
	if err := e.printGroups(groups.Sorted()); err != nil {
		return err
	}
	if n == 0 {
		if err := e.nothing(at.queue, o.Filter); err != nil {
			return err
		}
	}
	end := plural(n, "letter", "letters") + " in " + safe(at.queue)
	if cut {
		end = "the first " + end + "; there are more (--limit)"
	} else if selects(o.Filter) {
		end += " that match"
	}
	switch {
	case e.outTerminal && !e.json:
		_, _ = fmt.Fprintln(e.stdout, e.paint(text.Faint, end))
	case n == 0:
		_, _ = fmt.Fprintf(e.stderr, "no letters in %s\n", safe(at.queue))
	case cut:
		_, _ = fmt.Fprintln(e.stderr, end)
	}
	return nil
}

// rows prints letters as lines of a table.
type rows struct {
	env    *env
	header bool
}

const (
	leastReason = 20 // columns of a reason
	keysWidth   = 40
)

// widths are those of the columns before the reason. A time is RFC 3339 in UTC.
var widths = []int{36, 8, 20, 8, 11, 14}

var columns = []string{"ID", "FAILURES", "LAST FAILURE", "CAUSE", "DEAD REASON", "HANDLER", "REASON"}

func (r *rows) print(l *letters.Letter) error {
	if r.env.json {
		return r.env.printJSON(shown{Letter: l, Cause: l.Cause().ID()})
	}
	if !r.header {
		r.header = true
		if err := r.line(columns, text.Bold); err != nil {
			return err
		}
	}
	return r.line([]string{
		safe(l.ID), strconv.Itoa(l.Record.Failures), r.env.time(l.Record.LastFailedAt), l.Cause().ID(),
		cmp.Or(safe(string(l.Record.DeadReason)), "-"), cmp.Or(safe(l.Record.Handler), "-"), safe(reasonOf(l)),
	}, 0)
}

// line prints the columns, with a fixed width: the first letters are printed before the last ones are read.
func (r *rows) line(cells []string, colour text.Color) error {
	line := ""
	for i, width := range widths {
		cell := cells[i]
		if i > 0 && r.env.outTerminal { // an id that is cut cannot be used
			cell = text.Snip(cell, width, "…")
		}
		line += text.Pad(cell, width, ' ') + "  "
	}
	reason := cells[len(cells)-1]
	if r.env.outTerminal {
		reason = text.Snip(reason, max(r.env.width-text.StringWidth(line), leastReason), "…")
	}
	_, err := fmt.Fprintln(r.env.stdout, r.env.paint(colour, line+reason))
	return err
}

// reasonOf is the reason of a letter in one line. A letter without a record has none.
func reasonOf(l *letters.Letter) string {
	reason := strings.Join(strings.Fields(l.Record.Reason), " ")
	switch {
	case reason != "":
		return reason
	case l.Record.DeadReason != "":
		return "(" + string(l.Record.DeadReason) + ")"
	case l.Kind == letters.Orphan:
		return "(orphan)"
	}
	return "(no record)"
}

// time formats a time: on a terminal in the zone of this host.
func (e *env) time(t time.Time) string {
	switch {
	case t.IsZero():
		return "-"
	case e.outTerminal:
		return t.Local().Format(time.DateTime)
	}
	return t.UTC().Format(time.RFC3339)
}

func (e *env) printGroups(groups []letters.Group) error {
	if e.json {
		for _, group := range groups {
			if err := e.printJSON(struct {
				letters.Group
				ID string `json:"cause,omitempty"`
			}{group, idOf(group)}); err != nil {
				return err
			}
		}
		return nil
	}
	if len(groups) == 0 {
		return nil
	}
	_, err := fmt.Fprintln(e.stdout, e.causes("COUNT", groups))
	return err
}

// causes returns a row for each group. count is the title of the numbers of letters.
func (e *env) causes(count string, groups []letters.Group) string {
	columns := []string{">" + count, "CAUSE", "DEAD REASON", "ERROR TYPE", "REASON", "FIRST SEEN", "LAST SEEN", "EXAMPLE"}
	if slices.ContainsFunc(groups, func(g letters.Group) bool { return len(g.Keys) > 0 }) {
		columns = append(columns, "KEYS")
	}
	t := e.table(columns...)
	for _, g := range groups {
		reason := safe(g.Reason)
		if g.Other {
			reason = "(all other causes)"
		}
		if e.outTerminal { // the other columns have 130 characters
			reason = text.WrapSoft(reason, max(e.width-130, 40))
		}
		t.AppendRow(table.Row{
			thousands(g.Count), cmp.Or(idOf(g), "-"), cmp.Or(safe(string(g.DeadReason)), "-"),
			cmp.Or(safe(g.ErrorType), "-"), cmp.Or(reason, "-"),
			e.time(g.First), e.time(g.Last), safe(g.Example), e.keys(g),
		}[:len(columns)])
	}
	return t.Render()
}

// keys is how many letters of a group have which key, the largest first.
func (e *env) keys(g letters.Group) string {
	all := each.Of(lettertext.Largest(g.Keys, len(g.Keys)), func(key string) string {
		return fmt.Sprintf("%s (%s)", cmp.Or(safe(key), "others"), thousands(g.Keys[key]))
	})
	shown := strings.Join(all, ", ")
	if e.outTerminal {
		shown = text.WrapSoft(shown, keysWidth)
	}
	return cmp.Or(shown, "-")
}

// idOf returns the ID of a group's cause, or "" for the letters of many causes.
func idOf(g letters.Group) string {
	if g.Other {
		return ""
	}
	return g.ID()
}

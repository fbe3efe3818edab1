package relayletters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/internal/redrive"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/letters"
)

// part is for the command wmretry.
type part = operate.Part

// operator is a Store for the command wmretry. It looks as its Reader does.
type operator struct {
	operate.Looker
	store *Store
}

// blind is a Reader that cannot look.
type blind struct{}

var errNoLook = errors.New("the Reader of this Pub/Sub cannot look at what waits")

func (blind) Keys(context.Context) ([]string, error)             { return nil, errNoLook }
func (blind) Waiting(context.Context) ([]operate.Waiting, error) { return nil, errNoLook }
func (blind) Check(context.Context) (operate.Checked, error)     { return operate.Checked{}, errNoLook }

// Waiting implements operate.Operator. It also reads the first dead letter of each topic, for its time.
func (o operator) Waiting(ctx context.Context) ([]operate.Waiting, error) {
	all, err := o.Looker.Waiting(ctx)
	all = append([]operate.Waiting{}, all...) // an empty list is no null
	for i := range all {
		w := &all[i]
		if relaytopic.IsKey(w.Name) {
			w.Topic = o.store.topics().Dead(w.Name)
		}
		if w.Dead == 0 || err != nil {
			continue
		}
		var first []Stored
		if first, err = o.store.config.Reader.Read(ctx, w.Topic, "", "", 1); len(first) > 0 {
			w.OldestDead = o.store.letter(w.Topic, first[0].Message).DeadAt()
		}
	}
	return all, err
}

// Check implements operate.Operator. What every backend can have is found here.
func (o operator) Check(ctx context.Context) (operate.Checked, error) {
	checked, err := o.Looker.Check(ctx)
	if err != nil {
		return checked, err
	}
	if checked.Waiting, err = o.Waiting(ctx); err != nil && len(checked.Findings) > 0 { // one of them can be why
		checked.Unseen, err = append(checked.Unseen, "what waits: "+err.Error()), nil
	}
	for _, w := range checked.Waiting {
		if w.Overdue > 0 {
			checked.Found("overdue", w.Name, fmt.Sprintf("%d messages are due for more than %v, the first since %s",
				w.Overdue, operate.OverdueAfter, w.NextDue.UTC().Format(time.RFC3339)),
				"start the app of this group, or look at its Health: docs/other-pubsubs.md#what-waits")
		}
		if w.Name == relaytopic.Unknown && w.Dead > 0 {
			checked.Found("unknown", o.store.topics().Dead(w.Name), fmt.Sprintf("%d dead letters name no handler", w.Dead),
				"look at them with wmretry dead list, and send them to a topic with redrive --to")
		}
	}
	return checked, err
}

// Export implements operate.Operator.
func (o operator) Export(ctx context.Context, topic string, filter letters.Filter, to io.Writer) (int, error) {
	lines := redrive.Export{To: to}
	for found, err := range o.store.browse(ctx, topic, filter) {
		if err == nil {
			err = lines.Add(&found)
		}
		if err != nil {
			return lines.Letters, err
		}
	}
	return lines.Letters, nil
}

// Import implements operate.Operator.
func (o operator) Import(ctx context.Context, from io.Reader, options letters.Redrive) (letters.Summary, error) {
	s := o.store
	ctx, leave, err := s.life.Begin(ctx)
	if err != nil {
		return letters.Summary{}, err
	}
	defer leave()
	run := redrive.New(options, 1)
	err = run.Lines(ctx, from, func(text []byte) (redrive.Line, error) {
		topic, msg, err := parseLine(text)
		topic = cmp.Or(options.To, topic)
		if err == nil && !s.topics().IsDead(topic) {
			err = fmt.Errorf("the letter was in %q, which is no dead-letter topic with the prefix %q: name one with "+
				"--queue, or set --prefix", topic, s.topics().Dead(""))
		}
		return redrive.Line{Size: len(text), Put: func(ctx context.Context) error {
			return s.publish(ctx, topic, msg)
		}}, err
	})
	return run.Finish(err, false)
}

package relayletters

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/internal/redrive"
	"github.com/tieredretry/watermill-retry/letters"
)

// changeTimeout is how long a publish or a removal may take. Both go on after the end of the call's context.
const changeTimeout = 10 * time.Second

// Redrive implements letters.Store.
func (s *Store) Redrive(ctx context.Context, topic string, options letters.Redrive) (letters.Summary, error) {
	return s.run(ctx, topic, redrive.New(options, 1))
}

// Discard implements letters.Store.
func (s *Store) Discard(ctx context.Context, topic string, options letters.Discard) (letters.Summary, error) {
	return s.run(ctx, topic, redrive.NewDiscard(options))
}

// run goes through the letters. It locks the topic, unless nothing is changed.
func (s *Store) run(ctx context.Context, topic string, run *redrive.Run) (letters.Summary, error) {
	if err := run.Validate(); err != nil {
		return letters.Summary{}, err
	}
	ctx, leave, err := s.life.Begin(ctx)
	if err != nil {
		return letters.Summary{}, err
	}
	defer leave()
	if !run.Options.DryRun {
		held, unlock, err := s.config.Reader.Lock(ctx, topic)
		if err != nil {
			return letters.Summary{}, cause(ctx, err)
		}
		defer unlock()
		ctx = held
	}
	end, err := s.config.Reader.End(ctx, topic)
	if err != nil {
		return letters.Summary{}, cause(ctx, err)
	}
	run.Begin(end.Count)
	found := &source{store: s, run: run, topic: topic, end: end.Position, waited: map[string]operate.Waiting{}}
	err = cause(ctx, run.Pass(ctx, found))
	return run.Finish(err, found.whole && err == nil)
}

// source is the letters that were in a topic at the start.
type source struct {
	store *Store
	run   *redrive.Run
	topic string
	end   string   // position of the end of the topic at the start
	after string   // position of the last letter that was returned
	found []Stored // letters that were read, and not yet returned
	whole bool     // all letters were returned

	waited map[string]operate.Waiting // what waited for each target at the last look, by key
}

// Next implements redrive.Source. It reads the letters of a second at once, because another reader can take them away
// meanwhile.
func (s *source) Next(ctx context.Context) (redrive.Item, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if len(s.found) == 0 {
		ahead := batch
		if rate := s.run.Options.Rate; rate != 0 {
			ahead = max(1, int(min(rate, batch)))
		}
		var err error
		if s.found, err = s.store.config.Reader.Read(ctx, s.topic, s.after, s.end, ahead); err == nil {
			err = ctx.Err()
		}
		if s.whole = err == nil && len(s.found) == 0; s.whole || err != nil {
			return nil, err
		}
	}
	stored := s.found[0]
	s.found, s.after = s.found[1:], stored.Position
	return &item{source: s, Stored: stored, letter: s.store.letter(s.topic, stored.Message)}, nil
}

// Redead implements redrive.Source. These letters are behind the end of the topic. Those that were read may be gone
// when it returns.
func (s *source) Redead(ctx context.Context, _ int) (int, error) {
	s.found = nil
	redead := 0
	for stored, err := range s.store.read(ctx, s.topic, s.end, "") {
		if err != nil {
			return redead, err
		}
		if s.run.Sent(s.store.letter(s.topic, stored.Message)) {
			redead++
		}
	}
	return redead, nil
}

// Settle implements redrive.Source.
func (s *source) Settle() error { return nil }

// Unconsumed implements redrive.Source. Not every backend shows consumers, and not for every key. There a process shows
// itself by taking what is due, as letters of a redrive are at once.
func (s *source) Unconsumed(ctx context.Context, targets []string) (fault string, known bool) {
	all, err := s.store.looker.Waiting(ctx)
	if err != nil {
		return "", false
	}
	shown := 0
	for _, w := range all {
		if !slices.Contains(targets, s.store.topics().Return(w.Name)) {
			continue
		}
		shown++
		last := s.waited[w.Name]
		s.waited[w.Name] = w
		switch {
		case w.Consumers != nil && *w.Consumers == 0:
			fault = cmp.Or(fault, strconv.Quote(w.Name)+" has no consumer")
		case w.Consumers != nil, w.Due == 0, w.Due < last.Due, last.Due > 0 && w.NextDue.After(last.NextDue):
		case w.InFlight == 0:
			fault = cmp.Or(fault, "nothing takes what is due for "+strconv.Quote(w.Name))
		case w.MaybeGone:
			shown--
		}
	}
	return fault, shown == len(targets)
}

// item is a letter of a source.
type item struct {
	*source
	Stored
	letter *letters.Letter
}

func (i *item) Letter() *letters.Letter    { return i.letter }
func (i *item) Keep(context.Context) error { return nil }
func (i *item) Target() string             { return cmp.Or(i.run.Options.To, i.letter.Target) }

func (i *item) AppendLine(b []byte) ([]byte, error) { return appendLine(b, i.Message, i.letter) }

func (i *item) Find(ctx context.Context) error {
	target := i.Target()
	if target == "" {
		return fmt.Errorf("letter %q names no handler of this topic, so it and its like stay: set Redrive.To to a "+
			"topic: %w", i.letter.ID, letters.ErrNoTarget)
	}
	has, err := i.store.config.Reader.HasHandler(ctx, target)
	switch {
	case err != nil || has:
	case i.run.Options.To != "":
		err = fmt.Errorf("Redrive.To is %q, a topic to which no handler has subscribed, so the letters stay: correct the "+
			"name: %w", target, letters.ErrNoTarget)
	default:
		err = fmt.Errorf("no handler has subscribed to topic %q, so letter %q and its like stay: start the app of "+
			"that handler: %w", target, i.letter.ID, letters.ErrNoTarget)
	}
	return err
}

func (i *item) Send(ctx context.Context) (doubtful int, err error) {
	target, msg := i.Target(), fresh(i.Message, i.letter, i.run.Entry(i.letter.Record))
	if err := i.store.publish(ctx, target, msg); err != nil {
		return 1, fmt.Errorf("cannot publish letter %q to topic %q; the letter stays: %w", i.letter.ID, target, err)
	}
	if err := i.Remove(ctx); err != nil {
		return 1, fmt.Errorf("letter %q was published to topic %q, but it stays, so another redrive publishes it "+
			"again: %w", i.letter.ID, target, err)
	}
	return 0, nil
}

func (i *item) Remove(ctx context.Context) error {
	err := change(ctx,
		func(ctx context.Context) error { return i.store.config.Reader.Remove(ctx, i.topic, i.Position) })
	if err != nil {
		return fmt.Errorf("cannot remove letter %q from topic %q: %w", i.letter.ID, i.topic, err)
	}
	return nil
}

// publish publishes a letter.
func (s *Store) publish(ctx context.Context, topic string, msg *message.Message) error {
	return change(ctx, func(ctx context.Context) error {
		msg.SetContext(ctx)
		return s.config.Publisher.Publish(topic, msg)
	})
}

// change runs a publish or a removal. It goes on after the end of the call's context, because half of the two is a
// duplicate.
func change(ctx context.Context, do func(context.Context) error) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
	defer cancel()
	return panics.Error("the backend", func() error { return do(ctx) })
}

package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/lettertext"
	"github.com/tieredretry/watermill-retry/letters"
)

const (
	// reportInterval is how often Progress is called at most.
	reportInterval = 100 * time.Millisecond

	// lookInterval and lookEvery are how often a redrive looks for letters that died again: by time and by letters sent.
	lookInterval = time.Second
	lookEvery    = 20

	// changeTimeout is how long a publish or a removal may take. Both go on after the end of the call's context.
	changeTimeout = 10 * time.Second
)

// Redrive implements letters.Store.
func (l *Letters) Redrive(ctx context.Context, topic string, options letters.Redrive) (letters.Summary, error) {
	if err := options.Validate(); err != nil {
		return letters.Summary{}, err
	}
	options.By = cmp.Or(options.By, lettertext.UserAtHost())
	r := l.newRun(topic, options)
	r.act = r.send
	return r.do(ctx)
}

// Discard implements letters.Store. It refuses Discard.Export.
func (l *Letters) Discard(ctx context.Context, topic string, options letters.Discard) (letters.Summary, error) {
	if err := options.Validate(); err != nil {
		return letters.Summary{}, err
	}
	if options.Export != nil {
		return letters.Summary{}, errors.New("Discard.Export is set, and the dead letters of a relay have no export: remove it, and write down what Browse returns")
	}
	r := l.newRun(topic, letters.Redrive{Filter: options.Filter, Limit: options.Limit, DryRun: options.DryRun, Progress: options.Progress})
	r.act = r.remove
	return r.do(ctx)
}

// run is one call of Redrive or Discard.
type run struct {
	l       *Letters
	topic   string
	options letters.Redrive
	act     func(context.Context, StoredLetter, *letters.Letter) error // sends or removes a letter
	id      string                                                     // of this call, in the history of what it sends

	end     LetterEnd // of the topic at the start
	summary letters.Summary
	targets map[string]bool // whether the topic has a handler
	missing []error         // one for each topic without a handler

	began, started  time.Time // of the call; of the present pace
	paced           int       // letters sent since then
	reported, looks time.Time // of the last Progress; of the last look
	looked          int       // letters sent until the last look
	phase           letters.Phase
	until           time.Time
}

func (l *Letters) newRun(topic string, options letters.Redrive) *run {
	return &run{l: l, topic: topic, options: options, id: watermill.NewShortUUID(), targets: map[string]bool{}, began: time.Now()}
}

// do goes through the letters and returns the summary. It locks the topic, unless nothing is changed.
func (r *run) do(ctx context.Context) (summary letters.Summary, err error) {
	if err := r.l.begin(); err != nil {
		return summary, err
	}
	defer r.l.calls.Done()
	ctx, release := r.l.use(ctx)
	defer release()
	if !r.options.DryRun {
		held, unlock, err := r.l.config.Topics.Lock(ctx, r.topic)
		if err != nil {
			return summary, r.l.cause(ctx, err)
		}
		defer unlock()
		ctx = held
	}
	if r.end, err = r.l.config.Topics.End(ctx, r.topic); err != nil {
		return summary, r.l.cause(ctx, err)
	}
	r.summary.Total = r.end.Count
	r.phase = letters.Looking
	if r.options.Canary > 0 && !r.options.DryRun {
		r.phase = letters.Canary
	}
	r.started = time.Now()
	r.report(false)
	err = r.pass(ctx)
	r.finish(err == nil && !r.limitReached())
	return r.summary, errors.Join(append(r.missing, err)...)
}

// finish makes the summary add up. After a whole pass it has seen all letters: the others were taken away in the meantime.
func (r *run) finish(whole bool) {
	seen := r.summary.Done + r.summary.Other + r.summary.Kept
	if whole || r.summary.Total < seen {
		r.summary.Total = seen
	}
	r.summary.Unseen = r.summary.Total - seen
	r.phase, r.until = letters.Ended, time.Time{}
	r.report(true)
}

// pass goes through the letters once, and watches the canary.
func (r *run) pass(ctx context.Context) error {
	var canary []*letters.Letter
	for after := ""; !r.limitReached(); {
		found, err := r.l.config.Topics.Read(ctx, r.topic, after, r.end.Position, r.ahead())
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return r.l.cause(ctx, err)
		}
		for _, stored := range found {
			if ctx.Err() != nil || r.limitReached() {
				break
			}
			letter, done := r.l.letter(r.topic, stored.Message), r.summary.Done
			if err := r.take(ctx, stored, letter); err != nil {
				return err
			}
			after = stored.Position
			if r.summary.Done > done && r.phase == letters.Canary {
				canary = append(canary, letter)
			}
			if len(canary) == r.options.Canary && r.phase == letters.Canary {
				if err := r.watch(ctx, canary); err != nil {
					return err
				}
				break // the rest of these letters may be gone
			}
		}
		if len(found) == 0 {
			break
		}
	}
	if len(canary) > 0 && r.phase == letters.Canary {
		return r.watch(ctx, canary)
	}
	return r.look(ctx, true)
}

func (r *run) limitReached() bool { return r.options.Limit > 0 && r.summary.Done >= r.options.Limit }

// ahead is how many letters are read at once: those of a second, because another reader can take them away in the meantime.
func (r *run) ahead() int {
	if r.options.Rate == 0 {
		return batch
	}
	return max(1, int(min(r.options.Rate, batch)))
}

// take decides about one letter.
func (r *run) take(ctx context.Context, stored StoredLetter, letter *letters.Letter) error {
	if !r.options.Filter.Match(letter, time.Now()) {
		r.summary.Other++
	} else if err := r.act(ctx, stored, letter); err != nil {
		return err
	}
	r.report(false)
	return r.look(ctx, false)
}

// remove discards a letter.
func (r *run) remove(ctx context.Context, stored StoredLetter, letter *letters.Letter) error {
	if !r.options.DryRun {
		if err := r.change(ctx, func(ctx context.Context) error { return r.l.config.Topics.Remove(ctx, r.topic, stored.Position) }); err != nil {
			r.summary.Kept++
			return fmt.Errorf("cannot remove letter %q from topic %q: %w", letter.ID, r.topic, err)
		}
	}
	r.summary.Done++
	return nil
}

// send publishes a letter to its target, and removes it after that.
func (r *run) send(ctx context.Context, stored StoredLetter, letter *letters.Letter) error {
	target := cmp.Or(r.options.To, letter.Target)
	has, err := r.hasHandler(ctx, target, letter)
	if err != nil {
		return err
	}
	if !has {
		r.summary.Kept++
		return nil
	}
	if r.options.DryRun {
		r.summary.Done++
		return nil
	}
	if err := r.pace(ctx); err != nil {
		return r.l.cause(ctx, err)
	}
	msg, err := redriven(stored.Message, letter, r.options, r.id)
	if err != nil {
		r.summary.Kept++
		return err
	}
	if err := r.change(ctx, func(ctx context.Context) error {
		msg.SetContext(ctx)
		return r.l.config.Publisher.Publish(target, msg)
	}); err != nil {
		r.summary.Kept++
		r.summary.Doubtful++
		return fmt.Errorf("cannot publish letter %q to topic %q; the letter stays: %w", letter.ID, target, err)
	}
	if err := r.change(ctx, func(ctx context.Context) error { return r.l.config.Topics.Remove(ctx, r.topic, stored.Position) }); err != nil {
		r.summary.Kept++
		r.summary.Doubtful++
		return fmt.Errorf("letter %q was published to topic %q, but cannot be removed from %q, so another redrive publishes it again: %w",
			letter.ID, target, r.topic, err)
	}
	r.summary.Done++
	r.paced++
	return nil
}

// hasHandler reports whether the target of a letter is known and has a handler. It records the first letter of each target that has not.
func (r *run) hasHandler(ctx context.Context, target string, letter *letters.Letter) (bool, error) {
	if has, known := r.targets[target]; known {
		return has, nil
	}
	if target == "" {
		r.targets[target] = false
		r.missing = append(r.missing, fmt.Errorf("letter %q names no handler of this topic, so it and its like stay: set Redrive.To to a topic: %w", letter.ID, letters.ErrNoTarget))
		return false, nil
	}
	has, err := r.l.config.Topics.HasHandler(ctx, target)
	if err != nil {
		return false, r.l.cause(ctx, err)
	}
	r.targets[target] = has
	if !has {
		r.missing = append(r.missing, fmt.Errorf("no handler has subscribed to topic %q, so letter %q and its like stay: start the app of that handler: %w",
			target, letter.ID, letters.ErrNoTarget))
	}
	return has, nil
}

// change runs a publish or a removal. It goes on after the end of the call's context, because half of the two is a duplicate.
func (r *run) change(ctx context.Context, do func(context.Context) error) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
	defer cancel()
	defer func() {
		if recovered := recover(); recovered != nil {
			err = fmt.Errorf("panic: %v", recovered)
		}
	}()
	return do(ctx)
}

// pace waits until the rate allows the next letter.
func (r *run) pace(ctx context.Context) error {
	if r.options.Rate == 0 {
		return ctx.Err()
	}
	next := r.started.Add(time.Duration(float64(r.paced) / r.options.Rate * float64(time.Second)))
	if now := time.Now(); next.Before(now) {
		if now.Sub(next) > time.Second { // what was not sent in a break is not made up for
			r.started, r.paced = now, 0
		}
		return ctx.Err()
	}
	if !sleep(ctx, time.Until(next)) {
		return ctx.Err()
	}
	return nil
}

// watch waits whether the canary dies again.
func (r *run) watch(ctx context.Context, canary []*letters.Letter) error {
	r.phase, r.until = letters.Watching, time.Now().Add(cmp.Or(r.options.CanaryWait, letters.Watch(canary)))
	for {
		r.report(true)
		if err := r.count(ctx); err != nil {
			return err
		}
		if r.summary.Redead > 0 {
			return fmt.Errorf("%w: %d of the %d letters of the canary; the others were not sent", letters.ErrRedead, r.summary.Redead, len(canary))
		}
		left := time.Until(r.until)
		if left <= 0 {
			break
		}
		if !sleep(ctx, min(left, lookInterval)) {
			return r.l.cause(ctx, ctx.Err())
		}
	}
	r.phase, r.until = letters.Looking, time.Time{}
	r.started, r.paced = time.Now(), 0
	return nil
}

// look stops the call where too many of its letters have died again.
func (r *run) look(ctx context.Context, last bool) error {
	watches := r.options.MaxRedead > 0 || last && r.options.Canary > 0
	if r.options.DryRun || r.summary.Done == 0 || !watches {
		return nil
	}
	if !last && r.summary.Done < r.looked+max(lookEvery, r.looked/10) && (r.summary.Done == r.looked || time.Since(r.looks) < lookInterval) {
		return nil
	}
	if err := r.count(ctx); err != nil {
		return err
	}
	if r.options.Redead(r.summary.Done, r.summary.Redead) {
		return fmt.Errorf("%w: %d of %d, which is more than the share %v", letters.ErrRedead, r.summary.Redead, r.summary.Done, r.options.MaxRedead)
	}
	return nil
}

// count counts the letters of this call that have died again: those behind the end of the topic with this call in their history.
func (r *run) count(ctx context.Context) error {
	r.looks, r.looked = time.Now(), r.summary.Done
	redead := 0
	for after := r.end.Position; ; {
		found, err := r.l.config.Topics.Read(ctx, r.topic, after, "", batch)
		if err != nil {
			return r.l.cause(ctx, err)
		}
		for _, stored := range found {
			letter := r.l.letter(r.topic, stored.Message)
			if history := letter.Redriven.Redrives; len(history) > 0 && history[len(history)-1].Run == r.id {
				redead++
			}
			after = stored.Position
		}
		if len(found) == 0 {
			r.summary.Redead = max(r.summary.Redead, redead)
			return nil
		}
	}
}

// report calls Progress, at most as often as reportInterval allows.
func (r *run) report(now bool) {
	if r.options.Progress == nil || !now && time.Since(r.reported) < reportInterval {
		return
	}
	r.reported = time.Now()
	summary := r.summary
	summary.Unseen = max(0, summary.Total-summary.Done-summary.Other-summary.Kept)
	r.options.Progress(letters.Progress{Summary: summary, Phase: r.phase, Elapsed: time.Since(r.began), Until: r.until})
}

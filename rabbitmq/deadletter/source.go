package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/redrive"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

// source is the letters of one look.
type source struct {
	*call
	look    *look
	foreign int // letters that have arrived since the look began, and are not of this call
	redead  int // letters that have arrived, and are of this call
}

// Next implements redrive.Source. A letter that has died again is not looked at.
func (s *source) Next(ctx context.Context) (redrive.Item, error) {
	for {
		if s.look.single() { // what is sent and not removed when a letter ends the connection is sent twice
			s.Land()
		}
		d, err := s.look.next(ctx)
		if err != nil || d == nil {
			return nil, err
		}
		l := read(d, s.queue, s.store.prefix)
		if !s.Sent(l) {
			return s.item(d, l), nil
		}
		// the look is one letter longer: after a lost connection the broker may give newer letters back first
		s.look.total++
		s.look.left++
		if err := s.look.keep(ctx, d); err != nil {
			return nil, err
		}
	}
}

// Settle implements redrive.Source.
func (s *source) Settle() error { return s.look.settle() }

// Redead implements redrive.Source. It looks at letters only where enough of them have arrived.
func (s *source) Redead(ctx context.Context, enough int) (int, error) {
	arrived, err := s.look.arrived()
	if err != nil {
		return 0, err
	}
	if arrived > s.foreign+s.redead && (s.look.left == 0 || arrived-s.foreign >= enough) {
		err = s.search(ctx)
	}
	return s.redead, err
}

// search goes through what this call has not looked at, and counts the letters that have died again. Its own consumer
// may have fetched some of them. It does not go by their places: a letter that it replaces by a copy changes its
// place.
func (s *source) search(ctx context.Context) (err error) {
	behind, err := s.store.look(ctx, s.look.connection, s.queue, 0, -1,
		caution{careful: s.look.caution.careful}, s.look)
	if err != nil {
		return s.caution.after(behind, err)
	}
	defer func() { err = errors.Join(s.caution.after(behind, err), behind.close(ctx)) }()
	newer, redead := -max(s.look.total-s.look.received, 0), 0 // those that are to be looked at come, too
	ids := map[string]bool{}                                  // a lost connection can leave a letter beside its copy
	see := func(d *amqp091.Delivery) {
		newer++
		if letter := read(d, s.queue, s.store.prefix); s.Sent(letter) && (letter.ID == "" || !ids[letter.ID]) {
			ids[letter.ID] = true
			redead++
		}
	}
	for i := min(s.look.left, len(s.look.fetched)); i < len(s.look.fetched); i++ {
		see(&s.look.fetched[i])
	}
	for {
		d, err := behind.next(ctx)
		if err != nil {
			return err
		}
		if d == nil {
			break
		}
		see(d)
		if err := behind.keep(ctx, d); err != nil {
			return err
		}
	}
	if newer = max(newer, redead); s.queue == s.store.Orphans() { // these have no record of a redrive
		redead = newer
	}
	s.foreign, s.redead = newer-redead, redead
	return nil
}

// item returns the letter of a delivery, and where it is sent to.
func (s *source) item(d *amqp091.Delivery, l *letters.Letter) *item {
	i := &item{source: s, delivery: d, letter: l}
	switch {
	case s.Options.To != "":
		i.target, i.to = s.Options.To, destination{key: s.Options.To}
	case s.through != "":
		i.target, i.to = targetOfOrphan(d.RoutingKey, s.queue), destination{s.through, d.RoutingKey}
	default:
		i.target, i.to = l.Target, destination{key: l.Target}
	}
	return i
}

// item is a letter of a look.
type item struct {
	*source
	delivery *amqp091.Delivery
	letter   *letters.Letter
	target   string // its work queue
	to       destination
}

func (i *item) Letter() *letters.Letter             { return i.letter }
func (i *item) Keep(ctx context.Context) error      { return i.look.keep(ctx, i.delivery) }
func (i *item) Remove(context.Context) error        { return i.look.remove(i.delivery) }
func (i *item) Target() string                      { return i.target }
func (i *item) AppendLine(b []byte) ([]byte, error) { return appendLine(b, i.delivery, i.letter) }

func (i *item) Find(context.Context) error {
	switch {
	case i.target == "":
		return fmt.Errorf("%w: letters in %q do not say which work queue they are from; name it with Redrive.To",
			letters.ErrNoTarget, i.queue)
	case i.to == destination{key: i.queue}:
		return fmt.Errorf("%w: %q is the queue of the letters itself; name another one with Redrive.To",
			letters.ErrNoTarget, i.target)
	case i.to.exchange == "" && !i.Options.DryRun: // the broker returns the first letter
		return nil
	}
	switch _, err := inspect(i.look.connection, i.target); {
	case err == nil:
		return nil
	case refusal.IsCode(err, amqp091.NotFound):
		return i.gone()
	default:
		return explain("find the work queue", i.target, err)
	}
}

// Unconsumed implements redrive.Source.
func (s *source) Unconsumed(_ context.Context, targets []string) (fault string, known bool) {
	known = true
	for _, target := range targets {
		switch queue, err := inspect(s.look.connection, target); {
		case refusal.IsCode(err, amqp091.NotFound): // no letter was sent there
		case err != nil:
			known = false
		case queue.Consumers == 0:
			return fmt.Sprintf("the queue %q has no consumer", target), true
		}
	}
	return "", known
}

// inspect asks for a queue, which must exist.
func inspect(connection *wire.Connection, name string) (queue amqp091.Queue, err error) {
	_, err = connection.Channel(func(channel *amqp091.Channel) (err error) {
		defer channel.Close()
		queue, err = channel.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	})
	return queue, err
}

func (i *item) gone() error {
	if i.Options.To != "" {
		return fmt.Errorf("%w: Redrive.To is %q, a queue that does not exist, so the letters stay in %q; correct the name",
			letters.ErrNoTarget, i.target, i.queue)
	}
	return fmt.Errorf("%w: the queue %q does not exist, so its letters stay in %q; start the app that consumes it, or "+
		"discard them", letters.ErrNoTarget, i.target, i.queue)
}

// publishing returns what is sent: through an exchange the message as it is, and else without its record.
func (i *item) publishing() (amqp091.Publishing, error) {
	if i.to.exchange != "" {
		return same(i.delivery), nil
	}
	p := fresh(i.delivery, i.letter, i.store.prefix, i.Entry(i.letter.Record), i.look.connection.User)
	if reason := headers.RawReason(i.delivery.Headers); reason != "" && i.letter.Kind == letters.Library {
		return i.store.marshal(i.letter, p, reason)
	}
	return p, nil
}

func (i *item) Send(ctx context.Context) (doubtful int, err error) {
	p, err := i.publishing()
	if err != nil {
		return 0, &redrive.Stays{Err: err}
	}
	for {
		if i.look.connection.Client.IsClosed() { // the broker delivers it again, so this would be a second copy
			return doubtful, fmt.Errorf("%w: %w", errLost, i.look.connection.CloseReason())
		}
		err := i.sender.send(ctx, i.to, p)
		if err == nil {
			if err = i.Remove(ctx); err != nil {
				doubtful++ // the broker gives it back
			}
			return doubtful, err
		}
		if isDoubtful(err) {
			doubtful++
			if ctx.Err() == nil && !isUnconfirmed(err) { // each further try would be another duplicate
				continue // the letter is still here
			}
		}
		return doubtful, i.explain(err)
	}
}

// explain adds what to do to the error of a letter that was not sent.
func (i *item) explain(err error) error {
	kind := unpublished.KindOf(err)
	switch {
	case errors.Is(err, publish.ErrUnroutable):
		return i.gone()
	case refusal.IsCode(err, amqp091.AccessRefused):
		return fmt.Errorf("the letter stays: the user needs the permission to write to the exchange %q: %w",
			cmp.Or(i.to.exchange, "amq.default"), err)
	case isUnconfirmed(err):
		return fmt.Errorf("the work queue %q confirms no letter within %v, for example because it is a quorum queue "+
			"without a majority; letters in flight stay, and may be there as well; redrive again when it confirms: %w",
			i.target, confirmTimeout, err)
	case kind.ForGood(): // because of this letter
		return &redrive.Stays{Err: fmt.Errorf("a letter cannot be sent, and stays: %w", err)}
	case kind == unpublished.Rejected:
		return fmt.Errorf("the work queue %q refuses letters, for example because it is full; this letter and "+
			"those behind it stay: %w", i.target, err)
	}
	return fmt.Errorf("a letter cannot be sent, and stays: %w", err)
}

// A caution is what a call has learned about letters that end the connection that they are delivered on. What is
// fetched with such a letter comes back, and may be sent twice.
type caution struct {
	careful bool // a letter has done so: those behind the first ones are fetched one at a time
	// first is how many letters are fetched together. It is 0 where letters are removed: the broker delivers another one
	// for each acknowledgement.
	first int
}

var (
	// errCareful is the error of a look that the call repeats with more caution.
	errCareful = errors.New("letters are now read one at a time")
	// errUnreadable is the error of a look that has found the letter.
	errUnreadable = errors.New("cannot be read, so it and the letters behind it stay")
)

// after returns the error of a look. Where a letter has ended the connection, that is errCareful at first, and then an
// error that names the letter.
func (c *caution) after(l *look, err error) error {
	reason := endedByLetter(l.connection)
	if reason == nil || errors.Is(err, errCareful) || errors.Is(err, errUnreadable) {
		return err
	}
	if l.single() {
		return fmt.Errorf("the letter at place %d of %q %w. Redrive, or export and discard, those before it, and "+
			"then remove it: %w", l.unsettled()+1, l.queue, errUnreadable, reason)
	}
	if c.careful { // it is among the first ones now
		c.first = 0
	} else if c.careful = true; l.settled.all.Load() == 0 {
		c.first = l.received
	}
	return fmt.Errorf("%w: %w: %w", errLost, errCareful, reason)
}

// endedByLetter returns the reason of a connection that was closed because of a message that was delivered on it.
func endedByLetter(c *wire.Connection) error {
	if !c.Client.IsClosed() {
		return nil
	}
	return ofLetter(c.CloseReason())
}

// ofLetter returns the reason of a closed connection where a message was that.
func ofLetter(reason error) error {
	switch {
	case errors.Is(reason, wire.ErrUnreadable):
		return reason
	case refusal.IsCrash(reason): // such as by a property that AMQP 0-9-1 does not have
		return fmt.Errorf("the broker cannot deliver it: docs/limits.md#messages-that-go-clients-cannot-read: %w", reason)
	}
	return nil
}

// single reports whether letters are now fetched one at a time.
func (l *look) single() bool { return l.caution.careful && l.received >= l.caution.first }

// unsettled is how many letters of the look, and of the one that it is a part of, are fetched and not acknowledged.
func (l *look) unsettled() int {
	n := l.received - int(l.settled.all.Load())
	if l.of != nil {
		n += l.of.unsettled()
	}
	return n
}

// ahead is how many letters the next consumer fetches at most.
func (l *look) ahead() int {
	window := l.window
	if rest := l.caution.first - l.received; rest > 0 {
		window = min(window, rest)
	} else if l.caution.careful {
		window = 1
	}
	return max(min(window, l.left), 1) // what comes behind the letters to look at is not fetched
}

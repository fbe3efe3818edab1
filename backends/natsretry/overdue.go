package natsretry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/internal/tasks"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	lookEvery = 15 * time.Second

	// overdueAfter is how late a message may be without a fault: the server publishes those that are due together one
	// after the other.
	overdueAfter = 30 * time.Second

	// A look ends after so many messages in a row that stay, or so many bytes of them.
	lookAhead = 128
	lookBytes = 1 << 20
)

// overdue publishes messages again whose delay is over and which the server has given up. The server tries each
// once. Where the account or the server has no room to store the message on its return topic, the server tries again
// only after a restart, or when another one leads the stream.
type overdue struct {
	*server
	logger watermill.LoggerAdapter
	tasks  *tasks.Tasks

	mu     sync.Mutex
	health retry.Health // Tiers and TiersError
}

func (s *server) watchOverdue(logger watermill.LoggerAdapter) *overdue {
	o := &overdue{server: s, logger: logger, tasks: tasks.New(context.Background())}
	o.tasks.Go(o.watch)
	return o
}

func (o *overdue) watch() {
	for o.tasks.Context.Err() == nil {
		if o.Conn.IsConnected() {
			ctx, cancel := context.WithTimeout(o.tasks.Context, time.Minute)
			seen := &look{overdue: o, ctx: ctx}
			err := seen.all()
			cancel()
			if o.tasks.Context.Err() == nil {
				o.record(seen, err)
			}
		}
		_ = pauses.Sleep(o.tasks.Context, lookEvery)
	}
}

// write adds what the last look has found.
func (o *overdue) write(h *retry.Health) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h.Tiers, h.TiersError = o.health.Tiers, o.health.TiersError
}

func (o *overdue) record(seen *look, err error) {
	fields := watermill.LogFields{"stream": o.stream, "subject": o.waiting()}
	if seen.published > 0 {
		o.logger.Info("Messages whose delay was over had not come back, and were published again",
			fields.Add(watermill.LogFields{"messages": seen.published}))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.health
	o.health = retry.Health{}
	if seen.stays > 0 {
		since := time.Now()
		if len(before.Tiers) > 0 {
			since = before.Tiers[0].Since
		}
		o.health.Tiers = []retry.TierHealth{{Queue: o.waiting(), Overdue: seen.stays, Since: since}}
	}
	if err == nil {
		return
	}
	o.health.TiersError = err.Error()
	if o.health.TiersError != before.TiersError {
		o.logger.Error("Messages whose delay is over may not come back, trying again", err,
			fields.Add(watermill.LogFields{"overdue": seen.stays}))
	}
}

// waiting is the subject of all messages that wait.
func (o *overdue) waiting() string { return o.Prefix + ".wait.>" }

// look is one look for overdue messages.
type look struct {
	*overdue
	ctx       context.Context
	stream    jetstream.Stream
	before    time.Time // what was due by then, and stored, is overdue
	answered  bool      // the server lets the app read
	published int
	stays     int   // overdue, and not published
	refused   error // why
}

// all reads the oldest messages, and some from a random place: an older one with a long delay can hide them.
func (l *look) all() error {
	var err error
	if l.stream, err = l.js.Stream(l.ctx, l.server.stream); err != nil {
		return err
	}
	info := l.stream.CachedInfo()
	if err := l.check(info.Config); err != nil {
		return err
	}
	now, err := l.clock.now(l.ctx)
	if err != nil {
		return err
	}
	l.before = now.Add(-overdueAfter)
	next, err := l.from(1)
	if err == nil && next <= info.State.LastSeq {
		_, err = l.from(next + rand.Uint64N(info.State.LastSeq-next+1))
	}
	switch {
	case err == nil, l.ctx.Err() != nil && l.published > 0: // the next look goes on
	case l.answered:
		return fmt.Errorf("cannot read the messages that wait on %s: %w", l.waiting(), err)
	default: // a server does not answer where a right lacks
		return fmt.Errorf("cannot read the messages that wait on %s, which needs the right to publish to "+
			"$JS.API.STREAM.MSG.GET.%s: %w", l.waiting(), l.server.stream, err)
	}
	if l.refused != nil {
		return fmt.Errorf("a message that waits on %s is due, and the NATS server cannot store it on its topic; it comes "+
			"when there is room: delete messages that are not needed, or raise the limit: %w", l.waiting(), l.refused)
	}
	return nil
}

// from reads messages from a sequence on, until many in a row stay where they are. It returns the sequence after them.
func (l *look) from(sequence uint64) (uint64, error) {
	for stay, size := 0, 0; stay < lookAhead && size < lookBytes; {
		raw, err := l.next(sequence)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return ^uint64(0), nil
		}
		if err != nil {
			return sequence, err
		}
		sequence = raw.Sequence + 1
		// The server has just begun with a message that was stored since: this look, or that of another process, may have
		// published it again.
		if due, known := dueOf(raw.Header); !known || due.After(l.before) || raw.Time.After(l.before) {
			stay, size = stay+1, size+len(raw.Data)
			continue
		}
		if l.refused == nil || unpublished.KindOf(l.refused) == unpublished.TooLarge {
			err = l.again(raw)
			if err == nil {
				l.published++
				stay, size = 0, 0
				continue
			}
			if codeOf(err) == codeWrongSequence { // it has come back
				continue
			}
			if l.ctx.Err() != nil {
				return sequence, err
			}
			l.refused = classified(err)
		}
		l.stays++
		stay++
	}
	return sequence, nil
}

// next returns the first message that waits, from a sequence on.
func (l *look) next(sequence uint64) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(l.ctx, setupTimeout)
	defer cancel()
	raw, err := l.stream.GetMsg(ctx, sequence, jetstream.WithGetMsgSubject(l.waiting()))
	l.answered = l.answered || err == nil || errors.Is(err, jetstream.ErrMsgNotFound)
	return raw, err
}

// again replaces a message by itself, if it is still there: the server then begins anew with its schedule.
func (l *look) again(raw *jetstream.RawStreamMsg) error {
	ctx, cancel := context.WithTimeout(l.ctx, publishTimeout)
	defer cancel()
	_, err := l.js.PublishMsg(ctx, &nats.Msg{Subject: raw.Subject, Header: raw.Header, Data: raw.Data},
		jetstream.WithExpectLastSequencePerSubject(raw.Sequence))
	return err
}

// dueOf returns when a message is due that waits.
func dueOf(header nats.Header) (time.Time, bool) {
	at, found := strings.CutPrefix(header.Get(scheduleHeader), scheduleAt)
	due, err := time.Parse(dueLayout, at)
	return due, found && err == nil
}

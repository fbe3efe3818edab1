package natsretry

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/inflight"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	drainBatch = 64
	drainPause = 5 * time.Second
)

// tiers returns the tiers that have messages: those of a schedule that was changed, or of a server that had no
// scheduled messages.
func (s *server) tiers(ctx context.Context) (backoff.Schedule, error) {
	stream, err := s.js.Stream(ctx, s.stream)
	if err != nil {
		return nil, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(s.Prefix+".*"))
	if err != nil {
		return nil, err
	}
	var found backoff.Schedule
	for subject := range info.State.Subjects {
		if tier, err := s.tierOf(subject); err == nil {
			found = append(found, tier)
		}
	}
	return found, nil
}

func (s *server) tierOf(subject string) (time.Duration, error) {
	tier, err := backoff.ParseTier(strings.TrimPrefix(subject, s.Prefix+"."))
	return time.Duration(tier), err
}

// drains empty the tiers of a schedule that was changed, and those that processes fill which were started before the
// servers had scheduled messages. What these publish shows itself by a subscription, which costs nothing without them.
type drains struct {
	*server
	to     copyPublisher
	links  *links
	logger watermill.LoggerAdapter
	filled *nats.Subscription
	ctx    context.Context
	end    context.CancelFunc
	group  sync.WaitGroup

	mu      sync.Mutex
	running map[time.Duration]bool // whether more has come since the drain of the tier has begun to look
	closed  bool
}

func (s *server) drainTiers(to copyPublisher, l *links, logger watermill.LoggerAdapter) (*drains, error) {
	d := &drains{server: s, to: to, links: l, logger: logger, running: map[time.Duration]bool{}}
	d.ctx, d.end = context.WithCancel(context.Background())
	var err error
	d.filled, err = s.Conn.Subscribe(s.Prefix+".*", func(raw *nats.Msg) {
		if tier, err := s.tierOf(raw.Subject); err == nil {
			d.begin(tier)
		}
	})
	if err != nil {
		return nil, err
	}
	d.group.Go(d.look)
	return d, nil
}

// look finds what was published to tiers before the subscription, or while the connection was lost.
func (d *drains) look() {
	for d.ctx.Err() == nil {
		replaced := d.links.current()
		found, err := d.tiers(d.ctx)
		if err != nil {
			pause(d.ctx, drainPause)
			continue
		}
		for _, tier := range found {
			d.begin(tier)
		}
		select {
		case <-replaced:
		case <-d.ctx.Done():
		}
	}
}

// begin drains a tier until it is empty, unless that is being done.
func (d *drains) begin(tier time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	_, runs := d.running[tier]
	d.running[tier] = true
	if !runs {
		d.group.Go(func() {
			for d.more(tier) {
				d.drain(tier)
			}
		})
	}
}

// more reports whether something was published to a tier since the last call.
func (d *drains) more(tier time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.running[tier] || d.closed {
		delete(d.running, tier)
		return false
	}
	d.running[tier] = false
	return true
}

func (d *drains) close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.end()
	_ = d.filled.Unsubscribe()
	d.group.Wait()
}

// drain sends what waits on a tier to its return topic, where the server keeps it for the rest of its delay. It ends
// when the tier is empty.
func (d *drains) drain(tier time.Duration) {
	topic := d.names().Tier(backoff.Tier(tier))
	q := &queue{server: d.server, topic: topic, links: d.links, logger: d.logger}
	defer q.leave()
	fields := watermill.LogFields{"topic": topic}
	for d.ctx.Err() == nil {
		within, cancel := context.WithTimeout(d.ctx, drainPause)
		taken, err := q.Take(within, drainBatch)
		cancel()
		if err != nil {
			left, failed := d.tiers(d.ctx)
			if failed == nil && !slices.Contains(left, tier) {
				return
			}
			if d.ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) {
				d.logger.Error("Cannot read a tier, trying again", err, fields)
				pause(d.ctx, drainPause)
			}
			continue
		}
		if !d.forwardAll(q, taken, fields) {
			pause(d.ctx, drainPause)
		}
	}
}

// forwardAll reports whether it forwards some messages. What it does not forward comes again when its lease ends. It
// does not try those behind an error that can be the server's: each would wait for the timeout of a publish.
func (d *drains) forwardAll(q *queue, taken []*inflight.Taken, fields watermill.LogFields) bool {
	forwarded := 0
	for i, one := range taken {
		if d.ctx.Err() != nil {
			q.nak(taken[i:])
			break
		}
		err := d.forward(q, one)
		if err == nil {
			forwarded++
			continue
		}
		d.logger.Error("Cannot forward a message of a tier, trying again", err,
			fields.Add(watermill.LogFields{"message_uuid": one.Message.UUID}))
		if unpublished.KindOf(err) != unpublished.TooLarge {
			q.nak(taken[i+1:])
			return false
		}
	}
	return forwarded > 0
}

// forward publishes a message of a tier to its return topic, and acknowledges it.
func (d *drains) forward(q *queue, one *inflight.Taken) error {
	msg := one.Message
	record, known := retry.ReadRecord(msg.Metadata)
	key := cmp.Or(msg.Metadata[recordkey.ReturnTo], relaytopic.Key(record.Handler, ""))
	if !known || record.Handler == "" || !relaytopic.IsKey(key) {
		return d.deadLetter(q, one, record)
	}
	topic := d.names().Return(key)
	delete(msg.Metadata, recordkey.ReturnTo)
	delete(msg.Metadata, recordkey.LeaveAt)
	if wait := time.Until(record.DueAt); wait > 0 {
		msg.Metadata[delay.DelayedForKey] = wait.String()
	} else {
		delete(msg.Metadata, delay.DelayedForKey)
	}
	if err := d.to.Publish(topic, msg); err != nil {
		return err
	}
	return q.Ack(d.ctx, []*inflight.Taken{one})
}

var errForeign = errors.New("the retry middleware did not publish this message")

// deadLetter moves a message whose handler is unknown to the topic of such letters, as a tier of a relay does. Where it
// is too large with a record, it has none.
func (d *drains) deadLetter(q *queue, one *inflight.Taken, record retry.Record) error {
	msg, topic := one.Message, d.names().Dead(relaytopic.Unknown)
	d.logger.Error("Message on a tier has no failure record that names a handler, dead-lettering it", errForeign,
		watermill.LogFields{"topic": q.topic, "message_uuid": msg.UUID, "destination": topic})
	now := time.Now()
	record.Failures = max(record.Failures, 1)
	if record.LastFailedAt.IsZero() {
		record.LastFailedAt = now
	}
	if record.FirstFailedAt.IsZero() {
		record.FirstFailedAt = record.LastFailedAt
	}
	record.Reason, record.Topic = cmp.Or(record.Reason, errForeign.Error()), cmp.Or(record.Topic, q.topic)
	record.DueAt, record.DeadReason = time.Time{}, relay.DeadReasonForeign
	letter := msg.Copy()
	for _, key := range []string{recordkey.ReturnTo, recordkey.LeaveAt, delay.DelayedForKey} {
		delete(letter.Metadata, key)
	}
	record.Write(letter.Metadata)
	err := d.to.Publish(topic, letter)
	if unpublished.KindOf(err) == unpublished.TooLarge {
		err = d.to.Publish(topic, msg)
	}
	if err != nil {
		return err
	}
	return q.Ack(d.ctx, []*inflight.Taken{one})
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

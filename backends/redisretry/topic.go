package redisretry

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tieredretry/watermill-retry/internal/inflight"
)

const (
	// anyIdle is how idle entries are that were given back: every consumer may take them over.
	anyIdle = 24 * time.Hour

	// sweepPause is how often consumers without entries in flight are deleted that have been idle for sweepIdle.
	sweepPause = 5 * time.Minute
	sweepIdle  = 10 * time.Minute

	// firstCursor begins a pass over the entries in flight of a group.
	firstCursor = "0-0"
)

// topic is the Queue of a stream, as a consumer group reads it. The ID of a message is that of its entry. Only its Take
// uses the fields below alarm.
type topic struct {
	*server
	stream, group string
	name          string // for the watch
	hub           *hub
	alarm         *inflight.Alarm
	waits         bool      // the hub waits for an entry
	claimAt       time.Time // when to look for entries of dead consumers
	sweepAt       time.Time
	cursor        string
}

func newTopic(s *server, stream, group string) *topic {
	return &topic{
		server: s, stream: stream, group: group, name: nameOf(group, stream), hub: s.hub(group, stream),
		alarm: s.watchOf(nameOf(group, stream)).Alarm(nameOf(group, stream)), cursor: firstCursor,
		sweepAt: time.Now().Add(sweepPause),
	}
}

// nameOf returns the name of a topic for the watch, and for the other processes.
func nameOf(group, stream string) string { return group + "\x00" + stream }

// Take implements inflight.Queue.
func (t *topic) Take(ctx context.Context, n int) ([]*inflight.Taken, error) {
	taken, err := t.alarm.Take(ctx, n, func(looked bool) ([]*inflight.Taken, time.Duration, error) {
		waited := t.waits
		t.wait(false)
		taken, err := t.take(n, looked, !waited || t.hub.failed.Load())
		if isNoGroup(err) { // the stream was deleted
			err = t.regroup()
			return nil, 0, err
		}
		if err != nil || len(taken) > 0 {
			return taken, 0, err
		}
		t.wait(true)
		if t.hub.failed.Load() {
			return nil, lookPause, nil
		}
		return nil, max(time.Until(t.claimAt), 0), nil
	})
	t.wait(false)
	if ctx.Err() != nil {
		t.hub.giveBackEarly(t.stream)
	}
	return taken, err
}

// wait makes the hub wait for an entry, or no longer.
func (t *topic) wait(wanted bool) {
	if t.waits == wanted {
		return
	}
	if t.waits = wanted; wanted {
		t.hub.want(t)
	} else {
		t.hub.unwant(t)
	}
}

func (t *topic) regroup() error {
	ctx, cancel := t.command()
	defer cancel()
	return t.createGroup(ctx, t.stream, t.group)
}

// take takes what is there: new entries only where they are wanted, because the hub has just waited for them. It does
// not end with the context of the reader: what the server has delivered must be known.
func (t *topic) take(n int, looked, wanted bool) ([]*inflight.Taken, error) {
	ctx, cancel := t.command()
	defer cancel()
	if looked { // what is given back later is noted again
		if err := t.client.SRem(ctx, t.givenBack(t.tag(t.name)), t.name).Err(); err != nil {
			return nil, err
		}
		t.claimAt = time.Now()
	}
	if taken := t.taken(t.hub.takeEarly(t.stream, n)); len(taken) > 0 {
		return taken, nil
	}
	if !time.Now().Before(t.claimAt) {
		if taken, err := t.claim(ctx, n); err != nil || len(taken) > 0 {
			return taken, err
		}
	}
	if !wanted {
		return nil, nil
	}
	streams, err := t.client.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: t.group, Consumer: t.consumer, Streams: []string{t.stream, ">"}, Count: int64(n), Block: -1,
	}).Result()
	if err == redis.Nil || err == nil && len(streams) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return t.taken(streams[0].Messages), nil
}

// claim takes over entries of consumers that are gone or have given them back. It looks again after a lease, because no
// entry can be taken over before; and more often while the group has entries in flight.
func (t *topic) claim(ctx context.Context, n int) ([]*inflight.Taken, error) {
	for {
		answer, err := claimScript.Run(ctx, t.client, []string{t.stream},
			t.group, t.consumer, t.lease.Milliseconds(), t.cursor, n).Slice()
		if err != nil {
			return nil, err
		}
		var entries []redis.XMessage
		for _, entry := range answer[2:] {
			entries = append(entries, entryOf(entry))
		}
		t.cursor, _ = answer[0].(string)
		whole := t.cursor == firstCursor
		if pending, _ := answer[1].(int64); whole {
			t.claimAt = time.Now().Add(t.lease)
			if pending > 0 {
				t.claimAt = time.Now().Add(t.lease / 5)
			}
		}
		if taken := t.taken(entries); len(taken) > 0 {
			return taken, nil
		}
		if whole {
			return nil, t.sweep(ctx)
		}
	}
}

// sweep deletes consumers of processes that are gone.
func (t *topic) sweep(ctx context.Context) error {
	if time.Now().Before(t.sweepAt) {
		return nil
	}
	t.sweepAt = time.Now().Add(sweepPause)
	return t.deleteConsumers(ctx, "")
}

// deleteConsumers deletes the named consumer, and idle ones, where they have nothing in flight.
func (t *topic) deleteConsumers(ctx context.Context, name string) error {
	return leaveScript.Run(ctx, t.client, []string{t.stream}, t.group, name, sweepIdle.Milliseconds()).Err()
}

// entryOf returns an entry that a script has returned.
func entryOf(answer any) redis.XMessage {
	pair, _ := answer.([]any)
	if len(pair) != 2 {
		return redis.XMessage{}
	}
	entry := redis.XMessage{Values: map[string]any{}}
	entry.ID, _ = pair[0].(string)
	fields, _ := pair[1].([]any)
	for field := range slices.Chunk(fields, 2) {
		if len(field) == 2 {
			entry.Values[fmt.Sprint(field[0])] = field[1]
		}
	}
	return entry
}

// taken returns the messages of entries. One that cannot be read becomes a dead letter.
func (t *topic) taken(entries []redis.XMessage) []*inflight.Taken {
	var taken []*inflight.Taken
	for _, entry := range entries {
		one := &inflight.Taken{ID: entry.ID}
		var err error
		if one.Message, err = messageOf(entry.Values); err == nil {
			taken = append(taken, one)
			continue
		}
		deadLetter(t.server, t, one, foreignEntry(t.stream, entry.ID, entry.Values, err), t.stream, err)
	}
	return taken
}

// Ack implements inflight.Queue.
func (t *topic) Ack(ctx context.Context, taken []*inflight.Taken) error {
	ids := make([]string, len(taken))
	for i, one := range taken {
		ids[i] = one.ID
	}
	return t.client.XAck(ctx, t.stream, t.group, ids...).Err()
}

// Renew implements inflight.Queue.
func (t *topic) Renew(ctx context.Context, taken []*inflight.Taken) ([]*inflight.Taken, error) {
	return t.hold(ctx, taken, 0)
}

// GiveBack implements inflight.Queue. It tells the other processes.
func (t *topic) GiveBack(ctx context.Context, taken []*inflight.Taken) error {
	if _, err := t.hold(ctx, taken, anyIdle); err != nil {
		return err
	}
	t.watchOf(t.name).Found(t.name)
	return t.client.SAdd(ctx, t.givenBack(t.tag(t.name)), t.name).Err()
}

// hold sets how idle the entries of this consumer are, and returns those that it has no longer.
func (t *topic) hold(
	ctx context.Context, taken []*inflight.Taken, idle time.Duration,
) (lost []*inflight.Taken, err error) {
	for some := range slices.Chunk(taken, chunk) {
		args := []any{t.group, t.consumer, idle.Milliseconds()}
		for _, one := range some {
			args = append(args, one.ID)
		}
		held, err := holdScript.Run(ctx, t.client, []string{t.stream}, args...).Int64Slice()
		if isNoGroup(err) { // the server has no entry in flight, for any reader
			continue
		}
		if err != nil {
			return lost, err
		}
		lost = append(lost, without(some, held)...)
	}
	return lost, nil
}

// without returns the messages whose place, from 1 on, is not listed.
func without(taken []*inflight.Taken, places []int64) (rest []*inflight.Taken) {
	for i, one := range taken {
		if !slices.Contains(places, int64(i+1)) {
			rest = append(rest, one)
		}
	}
	return rest
}

// leave gives back what the hub has for the stream, and deletes the consumer. Where that fails, the messages come again
// after their lease, and another process deletes the consumer.
func (t *topic) leave(ctx context.Context) error {
	t.hub.leave(ctx, t.stream)
	if err := t.giveBackEarly(ctx); err != nil {
		return err
	}
	err := t.deleteConsumers(ctx, t.consumer)
	if isNoGroup(err) || isMissing(err) {
		return nil
	}
	return err
}

// giveBackEarly gives back what the hub has for the stream.
func (t *topic) giveBackEarly(ctx context.Context) error {
	var taken []*inflight.Taken
	for _, entry := range t.hub.takeEarly(t.stream, math.MaxInt) {
		taken = append(taken, &inflight.Taken{ID: entry.ID})
	}
	if len(taken) == 0 {
		return nil
	}
	return t.GiveBack(ctx, taken)
}

package redisretry

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/inflight"
	"github.com/tieredretry/watermill-retry/internal/msgbytes"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
)

// chunk is how many messages a script takes or settles, because it stops the server while it runs.
const chunk = 250

// returns is the Queue of a return topic. The Handle of a message is the token of its lease.
type returns struct {
	*server
	topic string
	keys  []string
	alarm *inflight.Alarm
}

func newReturns(s *server, topic string) *returns {
	return &returns{server: s, topic: topic, keys: s.keys(topic), alarm: s.watchOf(topic).Alarm(topic)}
}

// Take implements inflight.Queue.
func (r *returns) Take(ctx context.Context, n int) ([]*inflight.Taken, error) {
	return r.alarm.Take(ctx, n, func(bool) ([]*inflight.Taken, time.Duration, error) { return r.take(n) })
}

// take leases messages that are due. It returns the time until the next take, negative where nothing waits. It
// does not end with a context: what the server has leased must be known.
func (r *returns) take(n int) ([]*inflight.Taken, time.Duration, error) {
	ctx, cancel := r.command()
	defer cancel()
	token := r.consumer + " " + strconv.FormatInt(r.leases.Add(1), 36)
	answer, err := takeScript.Run(ctx, r.client, r.keys,
		r.topic, min(n, chunk), r.lease.Milliseconds(), token).Slice()
	if err != nil {
		return nil, 0, err
	}
	wait, ok := answer[0].(int64)
	if !ok {
		return nil, 0, fmt.Errorf("unexpected answer %v of the server", answer[0])
	}
	var taken []*inflight.Taken
	for pair := range slices.Chunk(answer[1:], 2) {
		id, _ := pair[0].(string)
		text, _ := pair[1].(string)
		one := &inflight.Taken{ID: id, Handle: token}
		if one.Message, err = msgbytes.Decode(text); err == nil {
			taken = append(taken, one)
			continue
		}
		r.refuse(one, text, err)
	}
	if len(taken) > 0 { // more may have become due meanwhile
		wait = 0
	}
	return taken, time.Duration(wait) * time.Millisecond, nil
}

// refuse makes a dead letter of what no app of this package has stored.
func (r *returns) refuse(one *inflight.Taken, text string, why error) {
	letter := foreignLetter(fmt.Sprintf("%x", one.ID), r.topic, []byte(text), nil, why)
	deadLetter(r.server, r, one, letter, r.topic, why)
}

// deadLetter moves a message that cannot be read to the topic of unknown handlers. Where that fails, its lease ends,
// and it comes again. Those behind it do not wait for it.
func deadLetter(
	s *server, queue inflight.Queue, one *inflight.Taken, letter *message.Message, topic string, why error,
) {
	ctx, cancel := s.command()
	defer cancel()
	dead := s.names.Dead(relaytopic.Unknown)
	fields := watermill.LogFields{"topic": topic, "message_uuid": letter.UUID, "destination": dead}
	s.logger.Error("Message cannot be read, dead-lettering it", why, fields)
	err := publisher{s}.add(ctx, dead, []*message.Message{letter})
	if err == nil {
		err = queue.Ack(ctx, []*inflight.Taken{one})
	}
	if err != nil {
		s.logger.Error("Cannot dead-letter a message that cannot be read, so it comes again", err, fields)
	}
}

// Ack implements inflight.Queue.
func (r *returns) Ack(ctx context.Context, taken []*inflight.Taken) error {
	for some := range slices.Chunk(taken, chunk) {
		args := []any{r.topic}
		for _, one := range some {
			args = append(args, one.ID)
		}
		if err := deleteScript.Run(ctx, r.client, r.keys, args...).Err(); err != nil {
			return err
		}
	}
	return nil
}

// Renew implements inflight.Queue.
func (r *returns) Renew(ctx context.Context, taken []*inflight.Taken) (lost []*inflight.Taken, err error) {
	for some := range slices.Chunk(taken, chunk) {
		args := append([]any{r.topic, r.lease.Milliseconds()}, leases(some)...)
		held, err := renewScript.Run(ctx, r.client, r.keys, args...).Int64Slice()
		if err != nil {
			return lost, err
		}
		lost = append(lost, without(some, held)...)
	}
	return lost, nil
}

// GiveBack implements inflight.Queue.
func (r *returns) GiveBack(ctx context.Context, taken []*inflight.Taken) error {
	for some := range slices.Chunk(taken, chunk) {
		args := append([]any{r.topic}, leases(some)...)
		if err := giveBackScript.Run(ctx, r.client, r.keys, args...).Err(); err != nil {
			return err
		}
	}
	r.watchOf(r.topic).Expect(r.topic, 0)
	return nil
}

func leases(taken []*inflight.Taken) (args []any) {
	for _, one := range taken {
		args = append(args, one.ID, one.Handle)
	}
	return args
}

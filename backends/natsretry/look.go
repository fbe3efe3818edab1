package natsretry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tieredretry/watermill-retry/internal/operate"
)

var _ operate.Looker = (*reader)(nil)

// mostLooked is how many messages a look at what waits reads: the server counts them for all handlers together only.
const mostLooked = 1000

// unread is the name of the rest.
const unread = "(further messages of all groups)"

// retries returns the stream of the retries, or nil where there is none.
func (r *reader) retries(ctx context.Context) (jetstream.Stream, error) {
	stream, err := r.js.Stream(ctx, r.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	return stream, err
}

// Keys implements operate.Looker.
func (r *reader) Keys(ctx context.Context) (keys []string, err error) {
	stream, err := r.retries(ctx)
	if err != nil || stream == nil {
		return nil, err
	}
	consumers := stream.ListConsumers(ctx)
	for consumer := range consumers.Info() {
		if key, is := strings.CutPrefix(consumer.Config.FilterSubject, r.names().Return("")); is {
			keys = append(keys, key)
		}
	}
	if err := consumers.Err(); err != nil {
		return nil, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(r.names().Dead(">")))
	if err != nil {
		return nil, err
	}
	for subject := range info.State.Subjects {
		keys = append(keys, strings.TrimPrefix(subject, r.names().Dead("")))
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// Waiting implements operate.Looker. What waits for a delay is read, up to 1,000 messages.
func (r *reader) Waiting(ctx context.Context) ([]operate.Waiting, error) {
	stream, err := r.retries(ctx)
	if err != nil || stream == nil {
		return nil, err
	}
	keys, err := r.Keys(ctx)
	if err != nil {
		return nil, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(r.Prefix+".>"))
	if err != nil {
		return nil, err
	}
	now, err := r.clock.now(ctx)
	if err != nil {
		return nil, err
	}
	late := now.Add(-operate.OverdueAfter)
	all := make([]operate.Waiting, len(keys))
	byKey := map[string]*operate.Waiting{}
	for i, key := range keys {
		w := &all[i]
		byKey[key] = w
		w.Name, w.Dead = key, int(info.State.Subjects[r.names().Dead(key)])
		if err := r.returned(ctx, stream, w, late); err != nil {
			return nil, err
		}
	}
	rest, err := r.delayed(ctx, stream, info.State.Subjects, byKey, late)
	if rest > 0 {
		all = append(all, operate.Waiting{Name: unread, Retries: rest})
	}
	return all, err
}

// returned adds what has come back to a return topic.
func (r *reader) returned(ctx context.Context, stream jetstream.Stream, w *operate.Waiting, late time.Time) error {
	topic := r.names().Return(w.Name)
	consumer, err := stream.Consumer(ctx, durableName("", topic))
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	info := consumer.CachedInfo()
	w.InFlight, w.Retries, w.Due = info.NumAckPending, int(info.NumPending), int(info.NumPending)
	w.MaybeGone = true                          // the server takes a message back when a process asks for another
	if w.InFlight == 0 || info.NumWaiting > 0 { // a process whose handlers are busy asks for none
		w.Consumers = &info.NumWaiting
	}
	if w.Retries == 0 {
		return nil
	}
	raw, err := stream.GetMsg(ctx, info.Delivered.Stream+1, jetstream.WithGetMsgSubject(topic))
	if errors.Is(err, jetstream.ErrMsgNotFound) { // it was delivered meanwhile
		return nil
	}
	if err == nil {
		due(w, raw.Time, late, w.Retries)
	}
	return err
}

// due adds that so many messages are due at a time.
func due(w *operate.Waiting, at, late time.Time, messages int) {
	if w.NextDue.IsZero() || at.Before(w.NextDue) {
		w.NextDue = at.UTC()
	}
	if at.Before(late) {
		w.Overdue += messages
	}
}

// delayed adds what waits for its delay, and returns how many messages were not read.
func (r *reader) delayed(
	ctx context.Context, stream jetstream.Stream, subjects map[string]uint64, byKey map[string]*operate.Waiting,
	late time.Time,
) (rest int, err error) {
	waiting := r.Prefix + ".wait."
	for subject, messages := range subjects {
		if strings.HasPrefix(subject, waiting) {
			rest += int(messages)
		}
	}
	next := uint64(1)
	for range min(rest, mostLooked) {
		raw, err := stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(waiting+">"))
		if errors.Is(err, jetstream.ErrMsgNotFound) { // the others have come back meanwhile
			return 0, nil
		}
		if err != nil {
			return rest, err
		}
		next = raw.Sequence + 1
		rest--
		w := byKey[strings.TrimPrefix(raw.Header.Get(targetHeader), r.names().Return(""))]
		if w == nil {
			continue
		}
		w.Retries++
		if at, known := dueOf(raw.Header); known {
			due(w, at, late, 1)
		}
	}
	return rest, nil
}

// Check implements operate.Looker.
func (r *reader) Check(ctx context.Context) (checked operate.Checked, err error) {
	checked = operate.Checked{
		Server: "NATS " + r.Conn.ConnectedServerVersion(),
		Unseen: []string{"sync_interval, which clients do not see: a power cut of a single server loses up to 2 minutes " +
			"by default (docs/other-pubsubs.md)"},
	}
	stream, err := r.retries(ctx)
	if err != nil {
		return checked, err
	}
	if stream == nil {
		checked.Unseen = append(checked.Unseen, "the stream "+r.stream+": it does not exist before an app has connected")
		return checked, nil
	}
	r.checkStream(&checked, stream.CachedInfo().Config, r.Conn.ConnectedClusterName())
	account, err := r.js.AccountInfo(ctx)
	if err != nil {
		return checked, err
	}
	checkAccount(&checked, account)
	return checked, r.checkStreams(ctx, &checked)
}

// checkStream applies the rules to the stream of the retries. cluster is the name of the cluster; empty: there is none.
func (r *reader) checkStream(checked *operate.Checked, config jetstream.StreamConfig, cluster string) {
	found := func(rule, what, do string) { checked.Found(rule, "stream "+r.stream, what, do) }
	if err := scheduled(config); err != nil {
		found("version", err.Error(), "docs/other-pubsubs.md")
	}
	if err := r.check(config); err != nil {
		found("limits", err.Error(), "nats stream edit "+r.stream)
	}
	if cluster != "" && config.Replicas < 3 {
		found("replicas", fmt.Sprintf("it is on %d servers of the cluster %s: what waits stops, or is lost, with one of them",
			config.Replicas, cluster), "nats stream edit "+r.stream+" --replicas 3")
	}
}

// checkAccount looks for a limit that is nearly reached.
func checkAccount(checked *operate.Checked, account *jetstream.AccountInfo) {
	limits := map[string]jetstream.Tier{"": account.Tier}
	for name, tier := range account.Tiers {
		limits[name] = tier
	}
	for name, tier := range limits {
		if limit := tier.Limits.MaxStore; limit > 0 && float64(tier.Store) > 0.9*float64(limit) {
			checked.Found("storage", "account "+name, fmt.Sprintf("%d of %d bytes of its storage are used: a full one takes no "+
				"copies, and messages that are due do not come back", tier.Store, limit),
				"docs/other-pubsubs.md#a-full-store-on-nats")
		}
	}
}

// checkStreams looks for streams that take or copy what is for the stream of the retries.
func (r *reader) checkStreams(ctx context.Context, checked *operate.Checked) error {
	streams := r.js.ListStreams(ctx)
	for other := range streams.Info() {
		if other.Config.Name != r.stream {
			r.checkOther(checked, other.Config)
		}
	}
	return streams.Err()
}

// checkOther finds what another stream takes or copies.
func (r *reader) checkOther(checked *operate.Checked, other jetstream.StreamConfig) {
	sources := other.Sources
	if other.Mirror != nil {
		sources = append(slices.Clone(sources), other.Mirror)
	}
	for _, source := range sources {
		if source.Name == r.stream {
			checked.Found("overlap", "stream "+other.Name, "it copies the stream "+r.stream+": its consumer there "+
				"takes messages that wait, and dead letters, away from the retries",
				"remove the source or mirror: nats stream edit "+other.Name)
		}
	}
	for _, subject := range other.Subjects {
		if first, _, _ := strings.Cut(subject, "."); first == ">" || first == "*" {
			checked.Found("overlap", "stream "+other.Name, "its subject "+subject+" is wider than the topics of an "+
				"app: no stream can be made beside it", "give it subjects that begin with a word of their own")
		}
	}
}

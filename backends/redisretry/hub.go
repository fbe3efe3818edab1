package redisretry

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tieredretry/watermill-retry/internal/pauses"
)

const (
	// maxHubs is how many consumer groups of a process have a connection on which they wait. The others are polled.
	maxHubs = 32

	// blockTime is how long a command waits. It is short where the server does not let another connection end it.
	blockTime      = time.Second
	shortBlockTime = 100 * time.Millisecond

	// pollEach is how much longer each polled hub makes the pause of all of them.
	pollEach = 2 * time.Millisecond

	// regroupPause is a pause after a command that got an entry or was ended, so that the topics which then come wait
	// with the others. A command with many streams costs the server more: the pause is longer by streamPause for each.
	regroupPause = time.Millisecond
	streamPause  = 10 * time.Microsecond
)

// hub waits for new entries of the topics of one consumer group, with one command for all that have none. On Redis
// Cluster it has one topic.
type hub struct {
	server *server
	group  string
	polled bool
	id     atomic.Int64 // the id of its connection; 0: unknown
	denied atomic.Bool  // the server does not let a command be ended
	failed atomic.Bool  // the last command has, perhaps because of one stream: each reader then asks for its own

	mu      sync.Mutex
	wanted  map[string]map[*topic]bool  // the readers that wait, by stream
	early   map[string][]redis.XMessage // delivered, and no reader has come yet
	blocked []string                    // the streams of the command that waits
	done    chan struct{}               // closed when it has ended
	ending  bool                        // it is being ended
	began   chan struct{}               // a reader waits; has room for one
	running bool
	own     *redis.Client // its connection
}

// hub returns the hub of a consumer group, on a stream.
func (s *server) hub(group, stream string) *hub {
	key := hubKey{group: group}
	if !s.anySlots() {
		key.stream = stream
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hubs[key]
	if h == nil {
		h = &hub{
			server: s, group: group, polled: len(s.hubs) >= maxHubs, wanted: map[string]map[*topic]bool{},
			early: map[string][]redis.XMessage{}, began: make(chan struct{}, 1),
		}
		switch s.client.(type) {
		case *redis.Client, *redis.ClusterClient:
		default:
			h.polled = true
		}
		s.hubs[key] = h
	}
	return h
}

// want makes the hub wait for an entry of a reader's stream, until there is one, or until unwant.
func (h *hub) want(t *topic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.wanted[t.stream] == nil {
		h.wanted[t.stream] = map[*topic]bool{}
	}
	h.wanted[t.stream][t] = true
	if !h.running && h.server.ctx.Err() == nil {
		h.running = true
		h.server.ended.Go(h.run)
	}
	if h.blocked != nil && !slices.Contains(h.blocked, t.stream) {
		h.endCommand()
	}
	select {
	case h.began <- struct{}{}:
	default:
	}
}

func (h *hub) unwant(t *topic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if delete(h.wanted[t.stream], t); len(h.wanted[t.stream]) == 0 {
		delete(h.wanted, t.stream)
	}
}

// takeEarly returns at most n entries that were delivered.
func (h *hub) takeEarly(stream string, n int) []redis.XMessage {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.early[stream]
	n = min(n, len(all))
	if h.early[stream] = all[n:]; n == len(all) {
		delete(h.early, stream)
	}
	return all[:n:n]
}

// leave returns when no command waits for a stream that has no readers.
func (h *hub) leave(ctx context.Context, stream string) {
	h.mu.Lock()
	done := h.done
	if h.wanted[stream] != nil || !slices.Contains(h.blocked, stream) {
		h.mu.Unlock()
		return
	}
	h.endCommand()
	h.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// interrupt ends the command that waits.
func (h *hub) interrupt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.blocked != nil {
		h.endCommand()
	}
}

// endCommand ends the command that waits, in the background. The caller has locked the hub.
func (h *hub) endCommand() {
	if h.ending || h.polled || h.denied.Load() {
		return
	}
	h.ending = true
	done, stream := h.done, h.blocked[0]
	go func() {
		for {
			ended, err := h.unblock(stream)
			if isRefused(err) {
				h.denied.Store(true)
			}
			if err != nil || ended {
				return
			}
			select {
			case <-done: // the server had not yet begun the command
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
}

// isRefused reports whether an error is an answer of the server.
func isRefused(err error) bool {
	var refused redis.Error
	return errors.As(err, &refused)
}

func (h *hub) unblock(stream string) (bool, error) {
	id := h.id.Load()
	if id == 0 {
		return false, nil
	}
	ctx, cancel := h.server.command()
	defer cancel()
	node, err := h.server.node(ctx, stream)
	if err != nil {
		return false, err
	}
	n, err := node.ClientUnblock(ctx, id).Result()
	return n > 0, err
}

// node returns the client of the server that has a stream.
func (s *server) node(ctx context.Context, stream string) (*redis.Client, error) {
	switch client := s.client.(type) {
	case *redis.Client:
		return client, nil
	case *redis.ClusterClient:
		return client.MasterForKey(ctx, stream)
	default:
		return nil, errors.New("the client has no connection of its own")
	}
}

// connection returns what the hub waits on: a client with one connection, whose ID it sets, or the app's where the hub
// is polled.
func (h *hub) connection(ctx context.Context, stream string) (redis.UniversalClient, error) {
	if h.polled {
		return h.server.client, nil
	}
	h.mu.Lock()
	own := h.own
	h.mu.Unlock()
	if own != nil {
		return own, nil
	}
	node, err := h.server.node(ctx, stream)
	if err != nil {
		return nil, err
	}
	options := *node.Options()
	options.PoolSize, options.MinIdleConns, options.MaxIdleConns, options.MaxActiveConns = 1, 0, 0, 0
	options.MaxRetries = -1 // a second try would get other entries, and the first ones wait for their lease
	before := options.OnConnect
	options.OnConnect = func(ctx context.Context, connection *redis.Conn) error {
		if before != nil {
			if err := before(ctx, connection); err != nil {
				return err
			}
		}
		id, err := connection.ClientID(ctx).Result()
		if isRefused(err) {
			h.denied.Store(true)
			return nil
		}
		h.id.Store(id)
		return err
	}
	own = redis.NewClient(&options)
	if err := own.ClientID(ctx).Err(); err != nil && !isRefused(err) { // connects, so that denied is known
		return nil, errors.Join(err, own.Close())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.own = own
	return own, nil
}

// disconnect closes the connection. A command that waits on it ends with an error.
func (h *hub) disconnect() {
	h.mu.Lock()
	own := h.own
	h.own = nil
	h.mu.Unlock()
	if own != nil {
		_ = own.Close()
	}
	h.id.Store(0)
}

// run waits for entries until the server is closed.
func (h *hub) run() {
	ctx := h.server.ctx
	defer h.disconnect()
	for failures := 0; ; {
		streams := h.next(ctx)
		if len(streams) == 0 {
			return
		}
		var found []redis.XStream
		client, err := h.connection(ctx, streams[0])
		if err == nil {
			found, err = h.read(client, streams)
		}
		early := h.deliver(found)
		if err == nil || err == redis.Nil {
			failures = 0
			h.failed.Store(false)
			h.pause(ctx, early, len(streams))
			continue
		}
		if isNoGroup(err) {
			err = h.createGroups(ctx, streams)
		}
		if err != nil && ctx.Err() == nil {
			h.fail()
			h.disconnect()
			if failures == 0 {
				h.server.logger.Error("Cannot wait for messages, trying again", err, nil)
			}
			_ = pauses.Sleep(ctx, pauses.After(failures))
			failures++
		}
	}
}

// next waits until a reader waits, and returns the streams of all of them. It returns none where the server is closed.
func (h *hub) next(ctx context.Context) []string {
	for {
		h.mu.Lock()
		var streams []string
		for stream := range h.wanted {
			streams = append(streams, stream)
		}
		if len(streams) > 0 && ctx.Err() == nil {
			h.blocked, h.done, h.ending = streams, make(chan struct{}), false
			h.mu.Unlock()
			return streams
		}
		h.mu.Unlock()
		select {
		case <-h.began:
		case <-ctx.Done():
			return nil
		}
	}
}

// read waits for one entry of each stream, as long as there is none at all.
func (h *hub) read(client redis.UniversalClient, streams []string) ([]redis.XStream, error) {
	block := blockTime
	if h.denied.Load() {
		block = shortBlockTime
	}
	if h.polled {
		block = -1
	}
	args := slices.Clone(streams)
	for range streams {
		args = append(args, ">")
	}
	ctx, cancel := context.Background(), func() {}
	if h.polled {
		ctx, cancel = h.server.command()
	}
	defer cancel()
	return client.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: h.group, Consumer: h.server.consumer, Streams: args, Count: 1, Block: block,
	}).Result()
}

// deliver wakes the readers of entries, and reports whether the command has ended before its time. The entries of
// streams without a reader that waits are given back soon, unless a reader comes.
func (h *hub) deliver(found []redis.XStream) (early bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.blocked = nil
	close(h.done)
	for _, stream := range found {
		name := stream.Stream
		h.early[name] = append(h.early[name], stream.Messages...)
		h.server.watchOf(nameOf(h.group, name)).Expect(nameOf(h.group, name), 0)
		if h.wanted[name] == nil {
			time.AfterFunc(time.Second, func() { h.giveBackEarly(name) })
		}
		delete(h.wanted, name)
	}
	return len(found) > 0 || h.ending
}

// fail makes each reader that waits ask for its own stream.
func (h *hub) fail() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failed.Store(true)
	for stream := range h.wanted {
		h.server.watchOf(nameOf(h.group, stream)).Expect(nameOf(h.group, stream), 0)
	}
}

func (h *hub) giveBackEarly(stream string) {
	t := &topic{server: h.server, stream: stream, group: h.group, name: nameOf(h.group, stream), hub: h}
	ctx, cancel := h.server.command()
	defer cancel()
	_ = t.giveBackEarly(ctx) // else their leases end
}

// pause waits before the next command.
func (h *hub) pause(ctx context.Context, early bool, streams int) {
	switch {
	case h.polled:
		h.server.mu.Lock()
		polled := len(h.server.hubs)
		h.server.mu.Unlock()
		_ = pauses.Sleep(ctx, max(lookPause, time.Duration(polled)*pollEach))
	case early:
		_ = pauses.Sleep(ctx, regroupPause+time.Duration(streams)*streamPause)
	}
}

// createGroups creates the group on streams that were deleted.
func (h *hub) createGroups(ctx context.Context, streams []string) error {
	var faults []error
	for _, stream := range streams {
		faults = append(faults, h.server.createGroup(ctx, stream, h.group))
	}
	return errors.Join(faults...)
}

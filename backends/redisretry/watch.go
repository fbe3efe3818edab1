package redisretry

import (
	"context"
	"slices"
	"time"

	"github.com/tieredretry/watermill-retry/internal/inflight"
)

// lookPause is how long a message of another process waits at most after it was due or given back.
const lookPause = 100 * time.Millisecond

// watchOf returns the watch of a topic. On Redis Cluster each tag has its own: a node that does not answer delays the
// looks at its topics only.
func (s *server) watchOf(name string) *inflight.Watch {
	tag := ""
	if !s.anySlots() {
		tag = s.tag(name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watches[tag]
	if w == nil {
		w = inflight.NewWatch(s.ctx, s, lookPause, s.logger)
		s.watches[tag] = w
	}
	return w
}

// Look implements inflight.Server. It returns the return topics with messages that are due, and the names of the topics
// with entries that were given back. The topics are those of one watch.
func (s *server) Look(ctx context.Context, topics []string) (map[string]time.Duration, error) {
	var tags, keys []string
	for _, name := range topics {
		tags = append(tags, s.tag(name))
	}
	slices.Sort(tags)
	for _, tag := range slices.Compact(tags) {
		keys = append(keys, s.index(tag), s.givenBack(tag))
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	names, err := dueScript.Run(ctx, s.client, keys).StringSlice()
	found := map[string]time.Duration{}
	for _, name := range names {
		found[name] = 0
	}
	return found, err
}

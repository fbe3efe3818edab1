package redisretry

import (
	"context"
	"slices"
	"time"
)

// lookPause is how long a message of another process waits at most after it was due or given back.
const lookPause = 100 * time.Millisecond

// Look implements inflight.Server. It returns the return topics with messages that are due, and the names of the topics
// with entries that were given back.
func (s *server) Look(ctx context.Context, topics []string) (map[string]time.Duration, error) {
	var tags []string
	for _, name := range topics {
		tags = append(tags, s.tag(name))
	}
	slices.Sort(tags)
	tags = slices.Compact(tags)
	step := 1
	if s.anySlots() {
		step = len(tags)
	}
	found := map[string]time.Duration{}
	for some := range slices.Chunk(tags, step) {
		var keys []string
		for _, tag := range some {
			keys = append(keys, s.index(tag), s.givenBack(tag))
		}
		within, cancel := context.WithTimeout(ctx, commandTimeout)
		names, err := dueScript.Run(within, s.client, keys).StringSlice()
		cancel()
		if err != nil {
			return found, err
		}
		for _, name := range names {
			found[name] = 0
		}
	}
	return found, nil
}

const (
	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
)

// pause doubles with every failure in a row.
func pause(failures int) time.Duration { return min(minPause<<min(failures, 10), maxPause) }

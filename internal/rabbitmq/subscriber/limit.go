package subscriber

import "github.com/tieredretry/watermill-retry/internal/gate"

var _ gate.Valve = (*subscription)(nil)

// Limit implements gate.Valve.
func (s *subscription) Limit(n int) {
	s.places.Set(n)
	s.look()
}

// look makes the loops look at the limit, and at the messages that are set aside.
func (s *subscription) look() {
	for _, l := range s.loops {
		l.look()
	}
}

// Taken implements gate.Valve. What a partition has fetched is not meant for a probe: its prefetch does not follow the
// limit.
func (s *subscription) Taken() int {
	if s.config.Order != nil {
		return s.places.Taken()
	}
	return int(s.receiver.backlog.Load()) + s.places.Taken()
}

// fetch returns the bound and the prefetch of a consumer that begins. Under a limit the prefetch is the limit: the
// messages that wait would otherwise be kept from other consumers, and counted when they go back.
func (s *subscription) fetch() (bound, prefetch int) {
	if bound = s.places.Limit(); bound == s.config.Concurrency {
		return bound, s.config.Prefetch
	}
	return bound, bound
}

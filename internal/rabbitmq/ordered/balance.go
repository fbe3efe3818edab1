package ordered

import (
	"time"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channel"
)

// balancePeriod is the time from one look at the number of consumers to the next, and from one partition that is handed
// over to the next.
const balancePeriod = 5 * time.Second

// hasTooMany reports whether this process consumes more partitions than its share, and it is time to hand one over. A
// partition from which nothing has come may be another process's.
func (n *session) hasTooMany() bool {
	s := n.of.of
	if n.intake != nil || n.ages.arrived() == 0 || !s.balancing.TryLock() {
		return false
	}
	defer s.balancing.Unlock()
	if time.Since(s.balanced) < balancePeriod {
		return false
	}
	processes := 0
	answered := n.Within(channel.AnswerTimeout, func() {
		open, err := n.Connection.OpenChannel()
		if err != nil {
			return
		}
		defer open.Close()
		if state, err := open.QueueDeclarePassive(s.members, true, false, false, false, nil); err == nil {
			processes = state.Consumers
		}
	})
	if !answered || !s.hasMoreThanItsShare(processes) {
		return false
	}
	s.balanced = time.Now()
	return true
}

// hasMoreThanItsShare reports whether this process has more than the partitions divided by the processes, rounded up.
func (s *subscription) hasMoreThanItsShare(processes int) bool {
	own := 0
	for _, p := range s.partitions {
		session := p.current.Load()
		if p.number >= 0 && session != nil && session.ages.arrived() > 0 && session.Gone().Err() == nil {
			own++
		}
	}
	return processes >= 2 && own > (len(s.partitions)-1+processes-1)/processes
}

package kafkaretry

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/warning"
)

// sweepPause is how long settled messages stay on a tier or a return topic.
const sweepPause = 5 * time.Second

// sweeper deletes what is settled on a tier or a return topic, which only one consumer group reads. The topic's
// retention is then only for messages that no process reads.
type sweeper struct {
	cluster *cluster
	topic   string

	sweeping sync.Mutex // held while Kafka deletes

	mu      sync.Mutex
	settled map[int32]int64 // the offset after that of the last settled message, for each partition
}

// add adds a message that is settled, and so are those before it. An idle topic costs nothing.
func (s *sweeper) add(partition int32, next int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.settled) == 0 {
		s.settled = map[int32]int64{}
		time.AfterFunc(sweepPause, s.sweep)
	}
	s.settled[partition] = max(s.settled[partition], next)
}

// sweep deletes what is settled, and returns after another sweep that has begun before: Close ends the client after
// that. A group whose offset was not committed yet then begins after what is deleted.
func (s *sweeper) sweep() {
	s.sweeping.Lock()
	defer s.sweeping.Unlock()
	s.mu.Lock()
	settled := maps.Clone(s.settled)
	clear(s.settled)
	s.mu.Unlock()
	if len(settled) == 0 {
		return
	}
	_, err := ask(context.Background(), s.cluster, func(admin sarama.ClusterAdmin) (struct{}, error) {
		return struct{}{}, admin.DeleteRecords(s.topic, settled)
	})
	switch {
	case err == nil, errors.Is(err, errClosed):
	case errors.Is(err, sarama.ErrOffsetOutOfRange): // another process has deleted more
	case !s.cluster.unswept.Swap(true):
		warning.Log(s.cluster.logger, "Kafka does not delete the settled messages of a tier or a return topic: they "+
			"stay for its retention. Give the client the permission to delete records. Later refusals are not logged",
			watermill.LogFields{"topic": s.topic, "err": err})
	}
}

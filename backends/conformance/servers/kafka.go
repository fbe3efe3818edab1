package servers

import (
	"context"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Kafka starts franz-go's kfake in this process: a broker that speaks Kafka's protocol and keeps its topics in
// memory. It is not Kafka. New topics have 16 partitions by default, as many as a handler has messages in flight. URL
// is host:port.
func Kafka(ctx context.Context) (*Server, error) { return KafkaCluster(ctx, 1, 16, nil) }

// KafkaCluster starts several brokers of kfake. New topics have so many partitions by default, and up to three
// replicas.
// kfake calls answer, where it is not nil, with one request at a time. It handles the request itself where answer
// returns nil, and closes the connection where it returns an error. URL is a list of host:port.
func KafkaCluster(
	_ context.Context, brokers, partitions int, answer func(kmsg.Request) (kmsg.Response, error),
) (*Server, error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(brokers), kfake.AllowAutoTopicCreation(),
		kfake.DefaultNumPartitions(partitions))
	if err != nil {
		return nil, err
	}
	s := kfakeAdapter{cluster: cluster, ends: map[partition]int64{}, moved: make(chan struct{})}
	const produce, fetch = 0, 1
	cluster.ControlKey(produce, s.produce)
	cluster.ControlKey(fetch, s.fetch)
	if answer != nil {
		cluster.Control(func(request kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			response, err := answer(request)
			return response, err, response != nil || err != nil
		})
	}
	return &Server{URL: strings.Join(cluster.ListenAddrs(), ","), Stop: sync.OnceFunc(cluster.Close)}, nil
}

// kfakeAdapter makes kfake accept what sarama sends, as Kafka does. kfake calls it with one request at a time.
type kfakeAdapter struct {
	cluster *kfake.Cluster

	mu    sync.Mutex
	ends  map[partition]int64
	moved chan struct{} // closed and replaced when an end moves
}

type partition struct {
	topic  string
	number int32
}

// produce sets a batch's partition leader epoch to -1. sarama sends 0, which kfake refuses. The CRC does not cover
// this field.
func (s *kfakeAdapter) produce(request kmsg.Request) (kmsg.Response, error, bool) {
	const epoch, count = 12, 57
	s.cluster.KeepControl()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, topic := range request.(*kmsg.ProduceRequest).Topics {
		for _, p := range topic.Partitions {
			if len(p.Records) >= count+4 {
				binary.BigEndian.PutUint32(p.Records[epoch:], math.MaxUint32)
				s.ends[partition{topic.Topic, p.Partition}] += int64(binary.BigEndian.Uint32(p.Records[count:]))
			}
		}
	}
	close(s.moved)
	s.moved = make(chan struct{})
	return nil, nil, false
}

// fetch answers a request that finds nothing with an empty list of records. kfake answers null, and sarama then
// closes the connection. Partitions without a message are taken out of a request that finds others.
func (s *kfakeAdapter) fetch(request kmsg.Request) (kmsg.Response, error, bool) {
	s.cluster.KeepControl()
	fetch := request.(*kmsg.FetchRequest)
	if s.finds(fetch) {
		return nil, nil, false
	}
	found := false
	s.cluster.SleepControl(func() { found = s.await(fetch) })
	if found {
		return nil, nil, false
	}
	response := fetch.ResponseKind().(*kmsg.FetchResponse)
	for _, topic := range fetch.Topics {
		answer := kmsg.NewFetchResponseTopic()
		answer.Topic = topic.Topic
		for _, p := range topic.Partitions {
			nothing := kmsg.NewFetchResponseTopicPartition()
			nothing.Partition, nothing.RecordBatches = p.Partition, []byte{}
			nothing.HighWatermark, nothing.LastStableOffset = p.FetchOffset, p.FetchOffset
			answer.Partitions = append(answer.Partitions, nothing)
		}
		response.Topics = append(response.Topics, answer)
	}
	return response, nil, true
}

func (s *kfakeAdapter) finds(fetch *kmsg.FetchRequest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	has := func(topic string, p kmsg.FetchRequestTopicPartition) bool {
		return p.FetchOffset < s.ends[partition{topic, p.Partition}]
	}
	found := slices.ContainsFunc(fetch.Topics, func(topic kmsg.FetchRequestTopic) bool {
		return slices.ContainsFunc(topic.Partitions, func(p kmsg.FetchRequestTopicPartition) bool {
			return has(topic.Topic, p)
		})
	})
	for i, topic := range fetch.Topics {
		if found {
			fetch.Topics[i].Partitions = slices.DeleteFunc(topic.Partitions, func(p kmsg.FetchRequestTopicPartition) bool {
				return !has(topic.Topic, p)
			})
		}
	}
	return found
}

func (s *kfakeAdapter) await(fetch *kmsg.FetchRequest) bool {
	deadline := time.After(time.Duration(fetch.MaxWaitMillis) * time.Millisecond)
	for {
		s.mu.Lock()
		moved := s.moved
		s.mu.Unlock()
		if s.finds(fetch) {
			return true
		}
		select {
		case <-moved:
		case <-deadline:
			return false
		}
	}
}

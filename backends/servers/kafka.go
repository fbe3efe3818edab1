package servers

import (
	"context"
	"encoding/binary"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Kafka starts franz-go's kfake in this process: a broker that speaks Kafka's protocol and keeps its topics in
// memory. It is not Kafka. URL is host:port.
func Kafka(ctx context.Context) (*Server, error) { return KafkaCluster(ctx, 1, nil) }

// KafkaCluster starts several brokers of kfake. New topics have one partition, and by default up to three replicas.
// kfake calls observe, where it is not nil, with one request at a time, before it handles the request. URL is a list
// of host:port.
func KafkaCluster(_ context.Context, brokers int, observe func(kmsg.Request)) (*Server, error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(brokers), kfake.AllowAutoTopicCreation(),
		kfake.DefaultNumPartitions(1))
	if err != nil {
		return nil, err
	}
	s := kfakeAdapter{cluster: cluster, ends: map[string]int64{}, moved: make(chan struct{})}
	const produce, fetch = 0, 1
	cluster.ControlKey(produce, s.produce)
	cluster.ControlKey(fetch, s.fetch)
	if observe != nil {
		cluster.Control(func(request kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			observe(request)
			return nil, nil, false
		})
	}
	return &Server{URL: strings.Join(cluster.ListenAddrs(), ","), Stop: sync.OnceFunc(cluster.Close)}, nil
}

// kfakeAdapter makes kfake accept what sarama sends, as Kafka does. kfake calls it with one request at a time.
type kfakeAdapter struct {
	cluster *kfake.Cluster

	mu    sync.Mutex
	ends  map[string]int64 // the end of each topic's only partition
	moved chan struct{}    // closed and replaced when an end moves
}

// produce sets a batch's partition leader epoch to -1. sarama sends 0, which kfake refuses. The CRC does not cover
// this field.
func (s *kfakeAdapter) produce(request kmsg.Request) (kmsg.Response, error, bool) {
	const epoch, count = 12, 57
	s.cluster.KeepControl()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, topic := range request.(*kmsg.ProduceRequest).Topics {
		for _, partition := range topic.Partitions {
			if len(partition.Records) >= count+4 {
				binary.BigEndian.PutUint32(partition.Records[epoch:], math.MaxUint32)
				s.ends[topic.Topic] += int64(binary.BigEndian.Uint32(partition.Records[count:]))
			}
		}
	}
	close(s.moved)
	s.moved = make(chan struct{})
	return nil, nil, false
}

// fetch answers a request that finds nothing with an empty list of records. kfake answers null, and sarama then
// closes the connection.
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
		for _, partition := range topic.Partitions {
			nothing := kmsg.NewFetchResponseTopicPartition()
			nothing.Partition, nothing.RecordBatches = partition.Partition, []byte{}
			nothing.HighWatermark, nothing.LastStableOffset = partition.FetchOffset, partition.FetchOffset
			answer.Partitions = append(answer.Partitions, nothing)
		}
		response.Topics = append(response.Topics, answer)
	}
	return response, nil, true
}

func (s *kfakeAdapter) finds(fetch *kmsg.FetchRequest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, topic := range fetch.Topics {
		for _, partition := range topic.Partitions {
			if partition.FetchOffset < s.ends[topic.Topic] {
				return true
			}
		}
	}
	return false
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

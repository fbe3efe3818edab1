package servers

import (
	"context"
	"encoding/binary"
	"math"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Kafka starts franz-go's kfake in this process: a broker that speaks Kafka's protocol and keeps its topics in memory. It is
// no Kafka. New topics have one partition.
func Kafka(context.Context) (*Server, error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.AllowAutoTopicCreation(), kfake.DefaultNumPartitions(1))
	if err != nil {
		return nil, err
	}
	// Sarama leaves the batch's partition leader epoch 0, as a Kafka lets it, and this kfake insists on -1. The CRC does not
	// cover the field.
	const epoch, produce = 12, 0
	cluster.ControlKey(produce, func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		for _, topic := range request.(*kmsg.ProduceRequest).Topics {
			for _, partition := range topic.Partitions {
				if len(partition.Records) >= epoch+4 {
					binary.BigEndian.PutUint32(partition.Records[epoch:], math.MaxUint32)
				}
			}
		}
		return nil, nil, false
	})
	return &Server{URL: strings.Join(cluster.ListenAddrs(), ","), Stop: sync.OnceFunc(cluster.Close)}, nil
}

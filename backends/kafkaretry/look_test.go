package kafkaretry

import (
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/internal/operatetest"
)

// TestRulesOfKafka: each rule finds its fault in what a cluster answers, and none in one that is well.
func TestRulesOfKafka(t *testing.T) {
	t.Parallel()
	none, some := 0, 2
	topic := func(err sarama.KError, leaders ...int32) func(*operate.Checked) {
		return func(checked *operate.Checked) {
			of := &sarama.TopicMetadata{Name: "retry.1s", Err: err}
			for i, leader := range leaders {
				of.Partitions = append(of.Partitions, &sarama.PartitionMetadata{ID: int32(i), Leader: leader, Replicas: []int32{1, 2, 3}})
			}
			want := 3
			if err != sarama.ErrNoError {
				want = 0
			}
			assert.Equal(t, want, checkShown(checked, of))
		}
	}
	settings := func(dead bool, replicas, brokers int, change map[string]string) func(*operate.Checked) {
		all := map[string]string{"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete", "min.insync.replicas": "2"}
		for name, value := range change {
			all[name] = value
		}
		return func(checked *operate.Checked) {
			topicSettings{"retry.1s", dead, replicas, brokers, all}.check(checked, time.Hour)
		}
	}
	waiting := func(retries int, consumers *int) func(*operate.Checked) {
		return func(checked *operate.Checked) {
			checkConsumers(checked, []operate.Waiting{{Name: "tier 1s", Retries: retries, Consumers: consumers}})
		}
	}
	missing := &sarama.TopicMetadata{Name: "orders", Err: sarama.ErrUnknownTopicOrPartition}
	read := func(topic *sarama.TopicMetadata, consumers *int) func(*operate.Checked) {
		return func(checked *operate.Checked) {
			checkRead(checked, topic, operate.Waiting{Name: "billing.orders", Consumers: consumers})
		}
	}
	for name, row := range map[string]struct {
		look       func(*operate.Checked)
		rule, what string
	}{
		"a topic that is well":      {topic(sarama.ErrNoError, 1, 2), "", ""},
		"no rights":                 {topic(sarama.ErrTopicAuthorizationFailed), "acls", "not authorized"},
		"no leader":                 {topic(sarama.ErrNoError, 1, -1), "leader", "partition 1 has no leader"},
		"settings that are well":    {settings(false, 3, 3, nil), "", ""},
		"one broker":                {settings(false, 1, 1, map[string]string{"min.insync.replicas": "1"}), "", ""},
		"letters are deleted":       {settings(true, 3, 3, map[string]string{"retention.ms": "7200000"}), "retention", "deletes its dead letters after 2h"},
		"waits longer than kept":    {settings(false, 3, 3, map[string]string{"retention.ms": "60000"}), "retention", "after 1m0s, and they wait for up to 1h"},
		"kept longer than it waits": {settings(false, 3, 3, map[string]string{"retention.ms": "7200000"}), "", ""},
		"limited by size":           {settings(false, 3, 3, map[string]string{"retention.bytes": "5"}), "retention", "at 5 bytes"},
		"compacted":                 {settings(false, 3, 3, map[string]string{"cleanup.policy": "compact,delete"}), "retention", "compacted"},
		"all replicas":              {settings(false, 2, 3, nil), "insync", "2 of 2 replicas: without one broker"},
		"one of three":              {settings(false, 3, 3, map[string]string{"min.insync.replicas": "1"}), "insync", "the failure of one broker"},
		"one replica":               {settings(false, 1, 3, map[string]string{"min.insync.replicas": "1"}), "insync", "it has one replica"},
		"read, and not there":       {read(missing, &some), "missing", "does not exist"},
		"perhaps read":              {read(missing, nil), "missing", "does not exist"},
		"not read any more":         {read(missing, &none), "", ""},
		"read, and there":           {read(&sarama.TopicMetadata{Name: "orders"}, &some), "", ""},
		"waits without a reader":    {waiting(3, &none), "lag", "3 messages wait"},
		"waits with readers":        {waiting(3, &some), "", ""},
		"nothing waits":             {waiting(0, &none), "", ""},
		"readers are not known":     {waiting(3, nil), "", ""},
	} {
		t.Run(name, func(t *testing.T) { operatetest.Finds(t, row.look, row.rule, "", row.what) })
	}
}

// TestWhatToDoAboutLettersThatStay: the lock is the same for a redrive and a discard, so its error has both.
func TestWhatToDoAboutLettersThatStay(t *testing.T) {
	t.Parallel()
	_, _, err := reader{}.Lock(t.Context(), "retry.dead.billing.orders")
	assert.ErrorContains(t, err, "To redrive, publish all letters that Browse finds")
	assert.ErrorContains(t, err, "up to the end that the topic had before")
	assert.ErrorContains(t, err, "To discard, remove all letters below an offset with kafka-delete-records.sh, or lower retention.ms")
}

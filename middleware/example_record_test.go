package middleware_test

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	retrymw "github.com/tieredretry/watermill-retry/middleware"
)

// The handler reads how often the message has failed before.
func ExampleReadRecord() {
	handler := func(msg *message.Message) error {
		if record, retried := retrymw.ReadRecord(msg.Metadata); retried && record.Failures >= 3 {
			fmt.Println("failed", record.Failures, "times, the last time with:", record.Reason)
		}
		return nil
	}
	msg := message.NewMessage("order-1", nil)
	msg.Metadata.Set(retrymw.FailuresKey, "3")
	msg.Metadata.Set(retrymw.ReasonKey, "the bank is down")
	_ = handler(msg)
	// Output:
	// failed 3 times, the last time with: the bank is down
}

func ExampleRecord() {
	text, err := json.Marshal(retrymw.Record{Failures: 2, Topic: "orders", Handler: "billing", DeadReason: retrymw.DeadReasonPermanent})
	fmt.Println(string(text), err)
	// Output:
	// {"failures":2,"topic":"orders","handler":"billing","dead_reason":"permanent"} <nil>
}

func ExampleRecord_String() {
	fmt.Println(retrymw.Record{
		Failures: 2, LastFailedAt: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), Topic: "orders", Reason: "the bank is down",
	})
	// Output:
	// failures=2 last_failed_at="2026-01-01T12:00:00.000Z" topic="orders" reason="the bank is down"
}

func ExampleRecord_Write() {
	metadata := message.Metadata{"trace": "abc"}
	retrymw.Record{Failures: 2, Topic: "orders", DeadReason: retrymw.DeadReasonExhausted}.Write(metadata)
	fmt.Println(metadata["trace"], metadata[retrymw.FailuresKey], metadata[retrymw.TopicKey], metadata[retrymw.DeadReasonKey])
	// Output:
	// abc 2 orders exhausted
}

// Code that copies metadata selectively keeps all of these keys.
func ExampleRecordKeys() {
	from := message.Metadata{"trace": "abc", retrymw.FailuresKey: "2", retrymw.TopicKey: "orders"}
	to := message.Metadata{}
	for _, key := range retrymw.RecordKeys() {
		if value, found := from[key]; found {
			to[key] = value
		}
	}
	fmt.Println(to)
	// Output:
	// map[retry_failures:2 retry_topic:orders]
}

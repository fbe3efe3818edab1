package retry_test

import (
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/retry"
)

// The handler reads how often the message has failed before.
func ExampleReadRecord() {
	handler := func(msg *message.Message) error {
		if record, retried := retry.ReadRecord(msg.Metadata); retried && record.Failures >= 3 {
			fmt.Println("failed", record.Failures, "times, the last time with:", record.Reason)
		}
		return nil
	}
	msg := message.NewMessage("order-1", nil)
	msg.Metadata.Set("retry_failures", "3")
	msg.Metadata.Set("retry_reason", "the bank is down")
	_ = handler(msg)
	// Output:
	// failed 3 times, the last time with: the bank is down
}

func ExampleRecord() {
	text, err := json.Marshal(retry.Record{Failures: 2, Topic: "orders", Handler: "billing", DeadReason: retry.DeadReasonPermanent})
	fmt.Println(string(text), err)
	// Output:
	// {"failures":2,"topic":"orders","handler":"billing","dead_reason":"permanent"} <nil>
}

func ExampleRecord_Write() {
	metadata := message.Metadata{"trace": "abc"}
	retry.Record{Failures: 2, Topic: "orders", DeadReason: retry.DeadReasonExhausted}.Write(metadata)
	fmt.Println(metadata["trace"], metadata["retry_failures"], metadata["retry_topic"], metadata["retry_dead_reason"])
	// Output:
	// abc 2 orders exhausted
}

// Code that copies metadata selectively keeps all of these keys.
func ExampleRecordKeys() {
	from := message.Metadata{"trace": "abc", "retry_failures": "2", "retry_topic": "orders"}
	to := message.Metadata{}
	for _, key := range retry.RecordKeys() {
		if value, found := from[key]; found {
			to[key] = value
		}
	}
	fmt.Println(to)
	// Output:
	// map[retry_failures:2 retry_topic:orders]
}

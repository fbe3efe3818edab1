package middleware_test

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
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

// A handler can treat a message that was redriven before in another way.
func ExampleReadRedriven() {
	handler := func(msg *message.Message) error {
		if history, redriven := letters.ReadRedriven(msg.Metadata); redriven {
			last := history.Redrives[len(history.Redrives)-1]
			fmt.Println("redriven", history.Times, "times, the last time by", last.By, "after:", last.Reason)
		}
		return nil
	}
	msg := message.NewMessage("order-1", nil)
	msg.Metadata.Set(recordkey.Redriven, `{"times":2,"redrives":[{"by":"ann@ops"},{"by":"bob@ops","reason":"the bank is down"}]}`)
	_ = handler(msg)
	// Output:
	// redriven 2 times, the last time by bob@ops after: the bank is down
}

// Code that redrives a dead letter by itself adds to its history.
func ExampleRedriven_Add() {
	dead := message.Metadata{"trace": "abc"}
	history, _ := letters.ReadRedriven(dead)
	history = history.Add(letters.PastRedrive{At: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), By: "ann@ops", Failures: 4, Reason: "the bank is down"})
	history.Write(dead)
	fmt.Println(dead[recordkey.Redriven])
	// Output:
	// {"times":1,"redrives":[{"at":"2026-01-01T12:00:00Z","by":"ann@ops","failures":4,"reason":"the bank is down"}]}
}

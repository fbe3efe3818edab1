package letters_test

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/letters"
)

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
	msg.Metadata.Set(letters.RedrivenKey, `{"times":2,"redrives":[{"by":"ann@ops"},{"by":"bob@ops","reason":"the bank is down"}]}`)
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
	fmt.Println(dead[letters.RedrivenKey])
	// Output:
	// {"times":1,"redrives":[{"at":"2026-01-01T12:00:00Z","by":"ann@ops","failures":4,"reason":"the bank is down"}]}
}

// Package connect_test has whole apps on Connect: on a model of a broker, and on a broker where that decides.
package connect_test

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"
)

const soon = 60 * time.Second // much longer than any of it takes

var errDown = errors.New("the bank is down")

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// A router whose Run returns an error waits for its handlers, which never run.
		goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill/message.(*Router).watchAllHandlersStopped.func1"),
	)
}

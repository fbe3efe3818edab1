package main

import (
	"context"
	"maps"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/retry"
)

// deadLetters delivers the dead letters of the app to the demo, as an observer sees them. On a server, Letters of each
// module reads them.
type deadLetters struct {
	out chan *message.Message
}

// newDeadLetters has room for more letters than the demo has.
func newDeadLetters() *deadLetters { return &deadLetters{out: make(chan *message.Message, 1000)} }

// Event implements retry.Observer. The letter is safe on the server.
func (d *deadLetters) Event(e retry.Event) {
	if e.Outcome != retry.DeadLettered {
		return
	}
	letter := message.NewMessage(e.MessageUUID, nil)
	maps.Copy(letter.Metadata, e.Metadata)
	e.Record.Write(letter.Metadata)
	d.out <- letter
}

// Subscribe implements message.Subscriber.
func (d *deadLetters) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return d.out, nil
}

// Close implements message.Subscriber.
func (*deadLetters) Close() error { return nil }

package subscriber

import "errors"

var (
	// ErrClosed is returned by Subscribe and SubscribeInitialize when the Subscriber or its Connection is closed.
	ErrClosed = errors.New("the subscriber is closed")

	// ErrNotConnected is returned by Subscribe and SubscribeInitialize when there is no connection to the broker at that moment.
	// The reason is part of the error's text, and errors.Is and errors.As find it. The Connection reconnects by itself.
	ErrNotConnected = errors.New("not connected to the broker")
)

package subscriber

import "errors"

// ErrClosed is returned by Subscribe and SubscribeInitialize when the Subscriber or its Connection is closed.
var ErrClosed = errors.New("the subscriber is closed")

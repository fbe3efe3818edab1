package retry

// An Observer is told what a Connection does: package observe, a module of its own, has one for Prometheus and one for
// OpenTelemetry. Connection.Observe attaches it.
type Observer interface {
	// Event is called for the outcome of each delivery, in the handler's goroutine, after a copy has been published and
	// before the message is acknowledged. On a short tier the message may be back, in another handler, before Event has
	// run.
	//
	// Many goroutines call it at the same time, on the path of each message: it must not block. What it does cannot
	// change the outcome of a message. A panic is logged once. After runtime.Goexit, as FailNow of a test calls it, the
	// message is nacked, unless its copy is published.
	Event(Event)
}

// Package servers starts private servers for the tests and the example. A server listens on a free port of 127.0.0.1.
// It has its data in a temporary folder, which Stop removes. On Linux the kernel ends the server when this process
// dies.
package servers

import "context"

// Server is a server that was started.
type Server struct {
	URL  string // its address, in the form that the backend's client needs
	Stop func() // stops the server and removes its data; a second call has no effect

	// Kill kills the server. Restart starts it again. Nil: Restart is nil.
	Kill func()

	// Restart kills the server as a crash of its process does, and starts it again on its data and its port. Nil: the
	// server keeps nothing.
	Restart func(context.Context) error
}

// Package server finds, installs and starts private servers for the tests and the examples. A server listens on a
// free port of 127.0.0.1. It has its data in a temporary folder, which Stop removes. On Linux the kernel ends the
// server when this process dies. It is a tool of this repository and not part of the library's API: it can change in
// any version.
package server

import "context"

// Server is a server that was started.
type Server struct {
	URL  string // its address, in the form that the backend's client needs
	Stop func() // stops the server and removes its data; a second call has no effect

	// Kill kills the server, as a crash does. Restart starts it again. Nil: Restart is nil.
	Kill func()

	// Pause stops the server from running until resume. Nil: it cannot be paused.
	Pause func() (resume func())

	// Restart kills the server, and starts it again on its data and its port. Nil: the server keeps nothing.
	Restart func(context.Context) error
}

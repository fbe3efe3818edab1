// Package servers starts private servers for the tests and the example. A server listens on a free port of 127.0.0.1.
// It has its data in a temporary folder, which Stop removes. On Linux the kernel ends the server when this process
// dies.
package servers

import "github.com/tieredretry/watermill-retry/tools/server"

// Server is a server that was started.
type Server = server.Server

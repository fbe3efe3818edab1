// Package servers starts the private servers of the backends, for the tests and the example: see package server.
package servers

import "github.com/tieredretry/watermill-retry/tools/server"

// Server is a server that was started.
type Server = server.Server

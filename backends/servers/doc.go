// Package servers starts private servers for the tests and the example. A server listens on a free port of 127.0.0.1. It has its
// data in a temporary folder, which Stop removes. On Linux the kernel ends the server when this process dies.
package servers

// Package servers starts servers that nobody else sees, for the tests and the example: on a free port of the loopback
// interface, with their data in a folder that goes with them. They end with this process, however it ends.
package servers

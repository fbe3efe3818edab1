// Package command tests the command wmretry on every backend, on real servers.
package command

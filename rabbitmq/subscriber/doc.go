// Package subscriber placeholder.
package subscriber

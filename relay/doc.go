// Package relay gives the retry tiers to Pub/Subs that have no queues with a TTL: a tier is a topic, and the relay, in the app's
// own process, holds its messages until they are due.
package relay

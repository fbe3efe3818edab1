// Command ordermodel searches every interleaving of a small world for a run that breaks the order of messages by key:
//
//	go run ./tools/ordermodel [-variant NAME] [-trace]
//
// It searches each variant of the protocol breadth first, and stops where one breaks a property: what it has found is a
// shortest run. The exit code is 1 unless each variant does what is expected of it. The test of the package does the
// same in CI. Each of the variants that must break has a fault that a rule of the protocol avoids.
//
// # The world
//
// Two keys, a and b, have up to three messages each: a1 a2 a3. They go to one quorum queue with a single active
// consumer. Up to three owners consume it, one after the other. The model has:
//
//   - the queue: ready messages, and before them those that were returned. It fills the prefetch in one go. A consumer
//     that ends returns its unacknowledged messages in order, behind what was returned before. One that is canceled
//     keeps them until its channel is closed.
//   - an owner: its messages by key, one handler for each key, and acks that are on their way. A crash loses those.
//   - faults of the active owner, after which the next one is active. A crash: a closed channel is the same. A zombie:
//     the broker has deposed it without its notice, and it goes on. A shutdown by basic.cancel. The consumer timeout of
//     RabbitMQ 4.3, which returns one message and cancels the consumer.
//   - failures: one that is retried, and one that makes a dead letter.
//   - a tier, for the variants that publish copies. Its dead-letter worker can restart, the queue can refuse a copy.
//   - an operator, who retries or skips a blocked message, or does nothing.
//
// It has no loss of the broker's data, no balance between processes and no change of the partitions. A rewind is a
// crash. What an owner is sent reaches it at once.
//
// # The properties
//
// An effect is a handling that succeeds. A message is settled once it has had an effect, or is a confirmed dead letter
// that the key skips. For each key:
//
//   - P1, inversion: a handling of message n starts only after all messages before n are settled.
//   - P2, an older message alone repeated: an effect is at most one message ahead of the effect before it. Then
//     duplicates are rewinds: after an older message, all that follow are handled again.
//   - P3, stale effect: no effect of a deposed owner comes after an effect of a later owner on a newer message.
//   - P4, lost: a message that is not settled is in the queue or held by its owner.
//   - P5, stuck: at rest no message waits, unless its key is blocked, or blocked keys fill the prefetch.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	only := flag.String("variant", "", "search only the variant with this `NAME`")
	trace := flag.Bool("trace", false, "print the shortest run that breaks a property")
	flag.Parse()
	ok, found := true, false
	for _, v := range variants() {
		if *only != "" && *only != v.name {
			continue
		}
		found = true
		began := time.Now()
		c := search(v)
		fmt.Printf("%-20s %-10s %7d states, %4.1f s   %s\n",
			v.name, c.result(), len(c.seen), time.Since(began).Seconds(), v.about)
		if c.broken != nil && *trace {
			fmt.Print(c.broken.run)
		}
		if c.result() != v.want {
			ok = false
			fmt.Printf("%-20s expected: %s\n", "", v.want)
		}
	}
	if !found {
		fmt.Fprintf(os.Stderr, "ordermodel: there is no variant %q: run without -variant for the list\n", *only)
	}
	if !ok || !found {
		os.Exit(1)
	}
}

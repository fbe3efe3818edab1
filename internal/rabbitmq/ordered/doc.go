// Package ordered is a subscriber that keeps the order of each key across instances and through retries. It holds a
// subscriber.Subscriber, and adds loops to it: one for the work queue, the intake, whose messages are moved to the
// partition of their key, and one for each partition.
//
//	ordered.go    Connection, with that which moves messages, and an operator's questions; Subscribe: its loops
//	partition.go  the kind of loop of a partition, and of the intake; their sessions, and how long these have waited
//	move.go       moves a message of the work queue to its partition
//	balance.go    whether this process has more partitions than its share
//	hold.go       messages that wait for their retry where they are, or for an operator
//
// Its words:
//
//	intake   the work queue of the handler, and the loop that moves what arrives there to a partition
//	mover    the channel that moves. Its AMQP connection has no other use: the broker blocks one that publishes, acks
//	         included, in an alarm
//	members  the queue on which each process has a consumer, which counts the processes
//	held     of a message: it waits in its partition, unacknowledged, until it is due or an operator decides
//	kept     of a held message: what the process remembers of it for one hour, also when it went back to its queue
//	behind   of a held message: those of its key that came after it
//
// A message that waits for its retry stays unacknowledged, in memory, and those of its key behind it. The queues give
// messages to one consumer at a time. Four rules keep their order there, and integration/order tests on the broker what
// they rely on: a consumer with messages is never cancelled, no part of its messages is nacked, its prefetch never
// becomes less, and it returns all of them before the consumer timeout. In each case it ends its calls, sends their
// acks, and closes its channel.
package ordered

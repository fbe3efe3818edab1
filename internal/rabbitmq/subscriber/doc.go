// Package subscriber is a Watermill subscriber for RabbitMQ that keeps several messages of each queue in flight.
// Watermill's router runs each message in a goroutine of its own; how many calls of the handler there are at the same
// time is Config.Concurrency. A message whose call has ended, and which waits for the confirm of what is published
// because of it, takes a place of Config.Prefetch only: the retry middleware calls EndCall of its place.
//
// A Connection is one AMQP connection for consuming. Any number of Subscribers share it, and each Subscribe call has a
// channel and a consumer of its own on it. The connection reconnects by itself. After each reconnect, and when the
// broker has cancelled a consumer, Handler.Declare restores the topology before the queue is consumed again. The way of
// a delivery through the rooms and files, each of which imports only those below it:
//
//	ordered     with partitions: a Subscriber that holds one of this package; see its documentation
//	subscriber
//	  connection.go    Connection: what all Subscribers share; wire.Link keeps it open
//	  subscriber.go    Subscribe: starts a subscription
//	  subscription.go  one Subscribe call: a loop for each of its queues, what they share, the limit of Config.Gate
//	  loop.go          declares and consumes one queue, and again when a session has ended
//	  declare.go       Handler: calls its Declare and Bind
//	  plain.go         the kind of loop of a work queue, and its sessions
//	dispatch    hands messages out, and waits for their acks and nacks
//	channel     one AMQP channel with one consumer
//
// The states of a loop. Each session ends for a reason; none is the pause, or the end of the subscription.
//
//	declare --> consume --> bind --> keep --> retire --+--> the end
//	   ^  ^        |          |                        |
//	   |  |        +- failed -+--> wait, longer each time (all loops together) --> declare
//	   |  +-- another limit, messages set aside, half of the consumer timeout, another process: at once
//	   +----- lost or cancelled: after a pause; paused: when the limit is raised, or the connection is another one
//
// Retiring, the loop of a work queue cancels the consumer, gives back what was not handed out, and lets what is in
// flight go on beside the next session. A session of package ordered waits for its calls, and closes the channel.
//
// # Order
//
// With a Concurrency of 1, one Subscribe call hands messages out in the order of the queue, the next one when the
// previous one is settled. With more, messages of one Config.OrderKey keep that order, and all others have none. Either
// holds within one Subscribe call. Two instances that consume one queue share its messages, so there is no order
// between them, and a key can be in flight in both. A single active consumer (x-single-active-consumer) is not enough:
// a shutdown or a pause cancels the consumer while its handlers run, and the broker then activates the next consumer
// with the messages behind them.
//
// Package ordered keeps the order of a key across instances and through retries.
//
// Without it, no order holds across retries. A message that is nacked, or published again with a delay, comes back
// after messages that were behind it. One exception: with a Concurrency and a Prefetch of 1, a nacked message comes
// back first, if the queue puts it back in its place, as RabbitMQ's queues do.
//
// # Delivered again
//
// Delivery is at least once. When the connection is lost, the messages in flight go on: their contexts do not end, Ack
// still returns true, and the ack is dropped, with a line in the log at the level debug. The broker delivers these
// messages again, to this or another consumer. Handlers have to be idempotent. Concurrency, Prefetch and OrderKey hold
// across the connections of one Subscribe call: a message that is delivered again waits for a place, and for its key,
// while the handler of its first delivery runs.
//
// A quorum queue counts deliveries towards its delivery limit (x-delivery-limit: 20 by default from RabbitMQ 4.0 on,
// none before). Beyond the limit, it dead-letters the message, or drops it.
//
//	                                               before 4.3    from 4.3 on
//	a handler nacks the message                    counted       not counted
//	the connection or the process is lost          counted       counted
//	a shutdown: fetched and not handed out         counted       not counted
//	a pause: fetched and not handed out            counted       not counted
//	a shutdown: in flight, and acked in time       -             -
//	a shutdown: in flight after CloseTimeout       counted       counted
//
// Before 4.3 there is no way to give back a fetched message without counting it. At most Config.Prefetch messages are
// concerned, each once for each shutdown.
//
// # Limits
//
// Config.Gate limits how many messages each Subscribe call has in flight, and counts those that take a place under the
// limit. The limit may change at any time.
//
//   - A limit of 0 pauses the subscription. Its consumer is cancelled, and what was fetched and not handed out goes
//     back to the queue. Messages in flight go on and are acked. Then nothing is unacknowledged. No message is consumed
//     until the limit is raised, also after a reconnect, which declares the topology as always. A pause that ends
//     before the consumer is cancelled gives nothing back.
//   - A limit of 1 to Concurrency-1 is also the prefetch. At most so many messages are in flight, whether their calls
//     have ended or not; those that were in flight at a pause take no place. With an OrderKey, the messages that wait
//     for their key are among them.
//   - No limit, and one from Concurrency on: Concurrency and Prefetch are the bounds.
//
// Each change of the limit cancels the consumer and begins another one, on a channel of its own. Before 4.3 a pause
// counts a delivery of the messages that go back; see the table above. A limit of 1 to n fetches few: a probe counts
// none for the others.
//
// A pause keeps the order of the queue with a Concurrency and a Prefetch of 1, and on classic queues. Else a quorum
// queue puts what was on its way to a consumer that is cancelled before what that consumer gives back.
//
// # Set aside
//
// The retry middleware can set a message aside whose dead letter the broker refuses for good. It stays unacknowledged
// and in flight, and takes no place of Concurrency. So the messages behind it overtake it, also with a Concurrency of
// 1. Where the messages that were set aside since the consumer began leave half of Concurrency or less of the prefetch
// to others, another consumer with the whole prefetch follows.
//
// # Shutdown
//
// Close, and the end of Subscribe's context, cancel the consumer, and give back what was fetched and not handed out.
// The channel that Subscribe returned is closed. Messages in flight go on for Config.CloseTimeout. Then their contexts
// end, and a second later the AMQP channel is closed, with which the broker delivers again those that were not settled.
// A message's context carries the values of Subscribe's context, and does not end with it.
package subscriber

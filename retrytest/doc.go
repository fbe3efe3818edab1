// Package retrytest tests how an app retries, without a broker and without waiting.
//
// An [App] is a router and a [retry.Connection] in memory. A test adds the app's own handlers, sends a
// message, and asserts its outcome. In a bubble of testing/synctest ten minutes take about a millisecond:
//
//	func TestBillingGivesUp(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			app := retrytest.New(t, backoff.Exponential(time.Second, 5, 4))
//			app.AddConsumerHandler(app.Router, "billing", "orders", bill)
//
//			story := app.Send("orders", message.NewMessage("order-1", []byte(`{"cents": 1999}`)))
//
//			story.RetriedAt(time.Second, 6*time.Second)
//			story.DeadLettered(retry.DeadReasonPermanent)
//		})
//	}
//
// A failed assertion prints the [Story] of the message, with one row for each attempt:
//
//	billing_test.go:19: retrytest: message "order-1" of "orders": retried at
//	     got: 1.001s 6.002s
//	    want: 1s 5s
//	    at       handler   took   failure   outcome                        why
//	    0s       billing   0s     1         retried, waits 1s on tier 1s   no answer from the bank
//	    1.001s   billing   0s     2         retried, waits 5s on tier 5s   no answer from the bank
//	    6.002s   billing   0s     3         dead-lettered as permanent     the card was reported stolen
//
// Each due time is rounded up to a whole millisecond, so that no retry is early.
//
// The outcomes and their words are those of [retry.Outcome]. A story never has held, because no publish fails here.
//
// Times and waits are spelled like tiers, because the queue on the broker has that name: 125s, not 2m5s. [Simulate]
// computes the story of a message without an app, from a policy and the errors of its handler.
//
// # The app's own function
//
// An App has the methods of every Connect. A function of the app that gets the router and the Connection needs no
// change:
//
//	func addHandlers(router *message.Router, retries retry.Connection) {
//		retries.AddConsumerHandler(router, "billing", "orders", bill)
//	}
//
//	addHandlers(app.Router, app)
//
// [App.Run] runs a router that the app's constructor has made. Code that adds its handlers by itself gets its
// subscribers from App.Subscriber, and App.Middleware. App.Publisher replaces the publisher of the app.
//
// The handlers of one topic share its messages, as the handlers of one queue of RabbitMQ do, unless their Options.Group
// differs. Each group gets every message.
//
// [Replay] calls a handler with a dead letter from production.
//
// # Differences from production
//
// The test runs Watermill's router, the retry middleware, and the app's handlers and middlewares. The Pub/Sub is in
// memory. So these differ from production:
//
//   - Retries are on time, to within the 2 ms of [Story.RetriedAt]. A broker can be late.
//   - Only nacked messages are delivered twice, and no publish fails.
//   - A requested delay (backoff.RetryAfter) is exact here. On RabbitMQ it takes whole tiers, and is longer by less
//     than the shortest one. Config.TiersWait does the same here.
//   - There are no delivery limits, queue arguments or permissions, and the app's marshaler is not used.
//   - All messages of a handler are in flight together, whatever its Concurrency, but while it is paused or limited by
//     its breaker.
//   - Dead letters go to the topic "retry.dead.<handler>".
//
// # In the bubble
//
// Time in a bubble advances only while all its goroutines wait for time, for channels of the bubble, or for each other.
// Handlers under test must not do network I/O, wait for channels that were made outside of the bubble, or sleep while
// they hold a mutex that another goroutine wants: the test would hang. They may sleep, and they may call everything in
// the process.
//
// New must be called inside of synctest.Test with the t of its function: with another t the test hangs or panics. An
// App that was made outside ends the test when it is used inside. When the test ends, the App closes everything. The
// contexts of the messages then end, as at a shutdown, and handlers that still run must return. Do not add router
// plugins that never end, such as Watermill's SignalsHandler.
//
// Outside of a bubble the app works in real time, for schedules of up to 10 seconds.
package retrytest

// Package retrytest lets an app test how it retries, without a broker and without waiting.
//
// An [App] is a router with the retry middleware and with retry tiers in memory. A test adds the app's own handlers, sends a
// message, and asserts what became of it. In a bubble of testing/synctest ten minutes take a millisecond:
//
//	func TestBillingGivesUp(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			app := retrytest.New(t, backoff.Exponential(time.Second, 5, 4))
//			app.AddConsumerHandler("billing", "orders", bill)
//
//			story := app.Send("orders", message.NewMessage("order-1", []byte(`{"cents": 1999}`)))
//
//			story.RetriedAt(time.Second, 6*time.Second)
//			story.DeadLettered(middleware.DeadReasonPermanent)
//		})
//	}
//
// An assertion that fails prints every attempt:
//
//	billing_test.go:19: retrytest: message "order-1" of "orders": retried at
//	     got: 1.001s 6.002s
//	    want: 1s 5s
//	    at       handler   took   failure   outcome                        why
//	    0s       billing   0s     1         retried, waits 1s on tier 1s   no answer from the bank
//	    1.001s   billing   0s     2         retried, waits 5s on tier 5s   no answer from the bank
//	    6.002s   billing   0s     3         dead-lettered as permanent     the card was reported stolen
//
// The milliseconds are the relay's, which rounds up so that nothing is early.
//
// # The app's own function
//
// An app that adds its handlers to a router, as on RabbitMQ, needs no change to be tested, if it takes router, subscriber and
// middleware as arguments:
//
//	func Register(router *message.Router, subscriber message.Subscriber, retry message.HandlerMiddleware) {
//		router.AddConsumerHandler("billing", "orders", subscriber, bill).AddMiddleware(retry, middleware.Timeout(time.Minute))
//	}
//
//	Register(app.Router, app.NewSubscriber(), app.Retry.Middleware)
//
// An app that uses package relay gets App.Relay in place of its own, and App.NewSubscriber for its subscriber. An app whose
// constructor makes router and middleware itself gets App.TieredRetryConfig, and its router goes to App.Run. In all cases
// App.Publisher takes the place of the publisher of handlers that produce messages.
//
// # What is real, and what is not
//
// Real are Watermill's router, the retry middleware with all it decides and writes into metadata, the relay that holds the
// tiers, and the app's handlers and middlewares. The Pub/Sub is Watermill's gochannel. So this is what differs from production:
//
//   - Retries come back on time, to within [Story.RetriedAt]'s 2 ms. A broker can be late, and RabbitMQ a millisecond early.
//   - Nothing is delivered twice but what is nacked, and no publish fails.
//   - There are no delivery limits, no queue arguments, no permissions, and the app's marshaler takes no part.
//   - Dead letters go to the topic "retry.dead.<handler>", unless Config.Middleware says otherwise.
//
// # In the bubble
//
// Time in a bubble goes on only while all its goroutines wait for time, for channels of the bubble, or for each other. Handlers
// under test must not do network I/O, wait for channels that were made outside, or sleep while they hold a mutex that another
// goroutine wants: the test would hang. They may sleep, and they may call anything in the process.
//
// New must be called with the t of the bubble. When the test ends the App closes everything; what handlers still do is ended by
// their message's context, as at a shutdown. Leave router plugins that never end, such as Watermill's SignalsHandler, to main.
//
// Outside a bubble all of this works in real time, for schedules of up to ten seconds, or of any length with Config.RealTime.
package retrytest

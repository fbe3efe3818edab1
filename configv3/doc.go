// Package configv3 is package config for watermill-amqp v3: the same builder, with the same names, around the app's own v3
// configuration. It is a module of its own, so that an app has only the major that it uses. What the broker gets is the same for
// both, and so apps of both majors share queues, tiers and dead letters; an app changes its major without touching the broker.
//
// What is different in v3 and matters here:
//
//   - QueueBind.GenerateRoutingKey is called at every Subscribe, where there is no exchange too: NewBuilder refuses a nil one,
//     with which Subscribe would panic. It is called with the topic; v2 calls it with the queue's name. An app whose keys depend
//     on it binds its queue with another key after the change of major, and the old binding stays until somebody removes it.
//   - A message that the broker delivers again has the metadata key _watermill_amqp_redelivered. A copy on its way over a tier or
//     into the dead-letter queue does not have it.
//   - DefaultMarshaler.PreprocessDelivery sees a retried message as it was the first time, without the x-death header of the
//     broker. What it does to headers is done to a copy, and the headers themselves make the round trip. Where it changes the
//     body, PostprocessPublishing has to change it back: copies are made of the message as the handler got it.
//   - NewDurableTopicConfig has one queue for all topics. Give every queue a builder and a subscriber of its own, with one topic:
//     the handlers of two topics would take each other's messages, and count their failures from the beginning.
//
// The same as in v2: a subscription has one message in flight; a message that the marshaler cannot read would come back at once
// and for ever, without the builder's marshaler; a consumer that the broker cancels is handed an empty message; and the
// subscriber has a data race of its own when it reconnects.
package configv3

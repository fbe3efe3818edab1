// Package publish defines the errors of a publish to RabbitMQ. Every publisher of this library returns an error that
// wraps one of them, or retry.ErrClosed. Its text has the exchange, the routing key and the UUID of the message. The
// error of several messages wraps those of all.
package publish

import "errors"

var (
	// ErrUnroutable is returned when the broker routed the message to no queue, or when the exchange does not exist,
	// also after the publisher has declared what it may declare. The message has not been delivered.
	ErrUnroutable = errors.New("the message was not routed to any queue")

	// ErrNacked is returned when the broker nacks the message, for example because a queue with
	// x-overflow=reject-publish is full. If the message was routed to one queue, it has not been delivered. If it was
	// routed to several, some of them may have it.
	ErrNacked = errors.New("the broker nacked the message")

	// ErrNotConfirmed is returned when there is no confirm within 30 s, or before the end of the message's context. The
	// message may have been delivered. Where it was not written to the socket in time, because the broker does not read
	// or too many messages wait for their confirms, the text has that.
	ErrNotConfirmed = errors.New("the broker did not confirm the message")

	// ErrBlocked is returned when the broker has blocked the connection, because of a memory or disk alarm. If the
	// connection is blocked when Publish is called, Publish returns at once and the message has not been delivered. A
	// message that is already in flight waits until its deadline, and may still be delivered when the alarm ends.
	ErrBlocked = errors.New("the broker has blocked the connection")

	// ErrNotConnected is returned when there is no connection, or when the connection is lost while the message is in
	// flight. In the first case the message has not been delivered, in the second it may have been.
	ErrNotConnected = errors.New("no connection to the broker")

	// ErrRefused is returned when the message cannot be sent. Either the publisher refused it, and the
	// error names the property, its value and the bound, or wraps the error of the app's marshaler. Or the broker closed
	// the channel because of the message, and the error wraps its *amqp091.Error. The message has not been delivered.
	ErrRefused = errors.New("the message was refused")

	// ErrNotDeclared is returned when the exchange could not be declared, or not in time. The message has not been
	// delivered.
	ErrNotDeclared = errors.New("the exchange was not declared")
)

// Package channel has one AMQP channel that consumes one queue: it is opened, delivers, sends acks and nacks, and ends
// with a reason. It knows neither messages nor handlers.
//
//	session.go  the channel: its consumer, its end
//	settler.go  sends the acks and nacks that are ready, together
package channel

// Package dispatch hands out the messages of one subscription. It knows neither the broker nor loops: arrivals come
// from a Source, which also settles them. One goroutine receives, unmarshals and hands out; others run functions in it,
// with Tell and Do.
//
//	arrival.go     a delivery that is not settled; lines of them; Keys: those that wait for an earlier one with their key
//	dispatcher.go  the goroutine: receives, takes places, hands out, gives back
//	handle.go      waits for the ack or nack of a message, in a goroutine for each one
//	nack.go        the pause before a nacked message goes back to its queue
package dispatch

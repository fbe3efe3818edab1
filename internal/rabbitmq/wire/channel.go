package wire

import amqp091 "github.com/rabbitmq/amqp091-go"

// An Opener opens channels.
type Opener interface {
	OpenChannel() (*amqp091.Channel, error)
}

// A Reopening is one channel for declarations. The broker closes it with each refusal. It is for one goroutine.
type Reopening struct {
	On      Opener
	channel *amqp091.Channel
}

// Channel opens the channel at the first call, and again where it is closed.
func (r *Reopening) Channel() (*amqp091.Channel, error) {
	if r.channel == nil || r.channel.IsClosed() {
		channel, err := r.On.OpenChannel()
		if err != nil {
			return nil, err
		}
		r.channel = channel
	}
	return r.channel, nil
}

// Close closes the channel where it is open, and waits for the broker's answer.
func (r *Reopening) Close() {
	if r.channel != nil {
		_ = r.channel.Close()
	}
}

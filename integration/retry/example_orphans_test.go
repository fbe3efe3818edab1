package retry_test

import (
	"context"
	"fmt"
	"log"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// returnOrphans sends the messages of the queue <prefix>.orphans back to their work queues, and returns how many were sent.
func returnOrphans(ctx context.Context, channel *amqp091.Channel, prefix string) (sent int, err error) {
	if err := channel.Confirm(false); err != nil {
		return 0, err
	}
	returned := channel.NotifyReturn(make(chan amqp091.Return, 1))
	for left := 1; left > 0; left-- {
		d, found, err := channel.Get(prefix+".orphans", false)
		if err != nil || !found {
			return sent, err
		}
		if sent == 0 {
			left += int(d.MessageCount) // those that were there at the start: what becomes an orphan again stays
		}
		confirm, err := channel.PublishWithDeferredConfirm(prefix+".return", d.RoutingKey, true, false, amqp091.Publishing{
			Headers: d.Headers, Body: d.Body, DeliveryMode: amqp091.Persistent, Priority: d.Priority,
			ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo,
			MessageId: d.MessageId, Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId,
		})
		if err != nil {
			return sent, err
		}
		confirmed, err := confirm.WaitContext(ctx)
		if err != nil {
			return sent, err
		}
		if !confirmed || len(returned) > 0 {
			return sent, fmt.Errorf("the broker did not route and confirm an orphan with the routing key %q", d.RoutingKey)
		}
		if err := d.Ack(false); err != nil {
			return sent, err
		}
		sent++
	}
	return sent, nil
}

func Example_orphans() {
	uri := "amqp://guest:guest@localhost:5672/"

	connection, err := amqp091.Dial(uri)
	check(err)
	defer connection.Close()
	channel, err := connection.Channel()
	check(err)
	sent, err := returnOrphans(context.Background(), channel, "retry")
	log.Println(sent, "orphans sent", err)
}

//go:build unix

package main

import (
	"context"
	"errors"
	"net/http"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// handshake returns nil where the broker accepts a connection within some seconds.
func (b broker) handshake() error {
	connection, err := amqp091.DialConfig(b.Variables["AMQP_URL"],
		amqp091.Config{Dial: amqp091.DefaultDial(5 * time.Second)})
	if err == nil {
		err = connection.Close()
	}
	return err
}

// ready returns nil where the broker accepts connections and the management API, which starts last, answers.
func (b broker) ready(ctx context.Context) error {
	if err := b.handshake(); err != nil {
		return err
	}
	address := b.Variables["AMQP_MANAGEMENT_URL"] + "/api/overview"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	request.SetBasicAuth("guest", "guest")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New("the management API answers " + response.Status)
	}
	return nil
}

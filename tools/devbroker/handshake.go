//go:build unix

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
)

// handshake sends the protocol header of AMQP 0-9-1 and waits for connection.start. It sends no credentials.
func handshake(ctx context.Context, uri *url.URL) error {
	port, secure := "5672", false
	switch uri.Scheme {
	case "amqp":
	case "amqps":
		port, secure = "5671", true
	default:
		return fmt.Errorf("the scheme is %q, not amqp or amqps", uri.Scheme)
	}
	if uri.Port() != "" {
		port = uri.Port()
	}
	connection, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(uri.Hostname(), port))
	if err != nil {
		return err
	}
	defer connection.Close()
	defer context.AfterFunc(ctx, func() { _ = connection.Close() })()
	if secure {
		// No password is sent here. The client that sends one verifies the certificate.
		connection = tls.Client(connection, &tls.Config{InsecureSkipVerify: true})
	}
	if _, err := io.WriteString(connection, "AMQP\x00\x00\x09\x01"); err != nil {
		return err
	}
	start := make([]byte, 11)
	if _, err := io.ReadFull(connection, start); err != nil {
		return fmt.Errorf("no answer in AMQP 0-9-1: %w", err)
	}
	// A method frame on channel 0, and after its size class 10, method 10.
	if !bytes.Equal(start[:3], []byte{1, 0, 0}) || !bytes.Equal(start[7:], []byte{0, 10, 0, 10}) {
		return errors.New("the answer is not AMQP 0-9-1")
	}
	return nil
}

// ready returns nil where the broker accepts connections and the management API, which starts last, answers.
func (b broker) ready(ctx context.Context) error {
	uri, err := url.Parse(b.Variables["AMQP_URL"])
	if err == nil {
		err = handshake(ctx, uri)
	}
	if err != nil {
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

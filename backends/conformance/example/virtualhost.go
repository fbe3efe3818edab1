package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
)

// virtualHost makes a virtual host on a RabbitMQ that other apps use too. remove deletes it, with all that the app has
// declared there.
func virtualHost(ctx context.Context, uri string) (own string, remove func() error, err error) {
	api := os.Getenv("AMQP_MANAGEMENT_URL")
	address, err := url.Parse(uri)
	if err != nil || api == "" {
		return "", nil, errors.New("AMQP_MANAGEMENT_URL and AMQP_URL must be the addresses of one RabbitMQ: run " +
			"`make test-backends`")
	}
	address.Path = "/example-" + strings.ToLower(rand.Text()[:8])
	call := func(ctx context.Context, method string) error {
		request, err := http.NewRequestWithContext(ctx, method, api+"/api/vhosts"+address.Path, nil)
		if err != nil {
			return errors.New("AMQP_MANAGEMENT_URL is not an address")
		}
		password, _ := address.User.Password()
		request.SetBasicAuth(cmp.Or(address.User.Username(), "guest"), cmp.Or(password, "guest"))
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return fmt.Errorf("the management API cannot be reached: %w", err)
		}
		defer func() { _ = response.Body.Close() }()
		if response.StatusCode >= http.StatusMultipleChoices {
			return fmt.Errorf("%s of the virtual host %s: the management API answers %s", method, address.Path,
				response.Status)
		}
		return nil
	}
	if err := call(ctx, http.MethodPut); err != nil { // the user gets all permissions there
		return "", nil, err
	}
	return address.String(), func() error { return call(context.WithoutCancel(ctx), http.MethodDelete) }, nil
}

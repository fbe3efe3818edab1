package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	healthWithin = 10 * time.Second // for the answer of an app
	healthBytes  = 8 << 20          // at most, of an answer
)

// App is the health of an app, as its endpoint shows it.
type App struct {
	URL    string            `json:"url"` // without the query, which can be a secret
	Health *retry.Health     `json:"health"`
	Error  string            `json:"error,omitzero"` // why Health is missing
	Ahead  *management.Ahead `json:"ahead"`
}

// ValidateEndpoint reports what is wrong with the address of an app's health. The error contains no part of it.
func ValidateEndpoint(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return errors.New("the address must be like http://host:8080/health (or https://), without a user and a " +
			"password, which other users of this machine can read")
	}
	return nil
}

// ask reads the health of an app.
func ask(ctx context.Context, address string) App {
	u, _ := url.Parse(address)
	app := App{URL: (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()}
	ctx, cancel := context.WithTimeout(ctx, healthWithin)
	defer cancel()
	if err := app.read(ctx, address); err != nil {
		var of *url.Error // it repeats the address
		if errors.As(err, &of) {
			err = of.Err
		}
		app.Error = err.Error()
	}
	return app
}

// client follows no redirect: it would send the address, which can be a secret, to another host.
var client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

func (a *App) read(ctx context.Context, address string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	sent := time.Now()
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	a.Ahead = management.AheadOf(response.Header, sent, time.Now())
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer is %d %s", response.StatusCode, http.StatusText(response.StatusCode))
	}
	var answer struct {
		retry.Health
		Subscriptions *[]retry.SubscriptionHealth
	}
	err = json.NewDecoder(io.LimitReader(response.Body, healthBytes)).Decode(&answer)
	if err != nil || answer.Subscriptions == nil {
		return errors.New("the answer is not the JSON of a retry.Health with handlers: docs/operations.md#health")
	}
	a.Health = &answer.Health
	a.Health.Subscriptions = *answer.Subscriptions
	for _, sub := range a.Health.Subscriptions {
		clear(sub.Blocked) // keys can be personal data
		for i := range sub.Keys {
			sub.Keys[i].Key = ""
		}
	}
	return nil
}

package management

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// About is what the API states about the broker and the client's user.
type About struct {
	Version string   `json:"rabbitmq_version"`
	Erlang  string   `json:"erlang_version"`
	User    string   `json:"name"`
	Tags    []string `json:"tags"`
	// Permissions are those of the user for the virtual host. Nil: the user is no administrator, and no other user
	// may read them.
	Permissions *Permissions `json:"permissions"`
	Ahead       *Ahead       `json:"ahead"`
}

// Permissions are regular expressions.
type Permissions struct {
	Configure string `json:"configure"`
	Write     string `json:"write"`
	Read      string `json:"read"`
}

// About returns what the API states about the broker and the client's user.
func (c *Client) About(ctx context.Context) (about About, err error) {
	sent := time.Now()
	header, err := c.fetch(ctx, "overview", "rabbitmq_version,erlang_version", &about)
	if err != nil {
		return About{}, err
	}
	about.Ahead = AheadOf(header, sent, time.Now())
	if err = c.get(ctx, "whoami", "name,tags", &about); err == nil && slices.Contains(about.Tags, "administrator") {
		of := c.vhost + "/" + url.PathEscape(about.User)
		err = c.get(ctx, "permissions/"+of, "configure,write,read", &about.Permissions)
	}
	return about, err
}

// Ahead is how far the clock of a server is ahead of this host's, in whole seconds.
type Ahead int

// AheadOf reads the clock of a server from the header Date of its answer, which has whole seconds. Without the header
// it returns nil.
func AheadOf(answer http.Header, sent, got time.Time) *Ahead {
	date, err := http.ParseTime(answer.Get("Date"))
	if err != nil {
		return nil
	}
	middle := sent.Add(got.Sub(sent) / 2)
	ahead := Ahead(date.Add(time.Second/2).Sub(middle).Round(time.Second) / time.Second)
	return &ahead
}

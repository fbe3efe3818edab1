package management

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func client(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	c, err := New(strings.Replace(server.URL, "http://", "http://shop:can%2Fary@", 1)+"/", Broker{Vhost: "a/b"})
	require.NoError(t, err)
	return c
}

// answers is a client of an API that gives this answer at this address.
func answers(t *testing.T, address, answer string) *Client {
	return client(t, func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		assert.Equal(t, "shop can/ary", user+" "+password)
		assert.Equal(t, "/api/queues/a%2Fb"+address, r.RequestURI)
		_, _ = fmt.Fprint(w, answer)
	})
}

func TestQueues(t *testing.T) {
	for _, row := range []struct {
		columns, answer string
		want            map[string]Queue
	}{
		{Flows,
			`[{"name":"new"},{"name":"tier","messages":7,"messages_dlx":5,"message_stats":{"publish":9}},` +
				`{"name":"classic","messages":3,"message_stats":{}},{"name":"dead","messages":2,"message_stats":[]}]`,
			map[string]Queue{
				"new": {Name: "new"}, "tier": {Name: "tier", Messages: 7, Stated: true, Expired: 5, Published: 9, Counted: true},
				"classic": {Name: "classic", Messages: 3, Stated: true}, "dead": {Name: "dead", Messages: 2, Stated: true},
			}},
		{Depths, // the number of messages of a new queue is not known yet
			`[{"name":"new"},{"name":"dead","messages":7,"consumers":1},{"name":"empty","messages":0}]`,
			map[string]Queue{"new": {Name: "new"}, "dead": {Name: "dead", Messages: 7, Stated: true, Consumers: 1},
				"empty": {Name: "empty", Stated: true}}},
		{Details,
			`[{"name":"new","arguments":[],"effective_policy_definition":[]},{"name":"tier","type":"quorum","durable":true,` +
				`"arguments":{"x-message-ttl":1000,"x-queue-type":"quorum","ratio":0.5,"flag":true},"policy":"limits","operator_policy":null,` +
				`"effective_policy_definition":{"max-length":9},"messages":7,"messages_ready":1,"messages_unacknowledged":2,"messages_dlx":4,"consumers":3}]`,
			map[string]Queue{"new": {Name: "new", Arguments: Arguments{}, Effective: Arguments{}}, "tier": {
				Name: "tier", Type: "quorum", Durable: true, Policy: "limits", Messages: 7, Stated: true, Ready: 1, Unacked: 2, Expired: 4, Consumers: 3,
				Arguments: Arguments{"x-message-ttl": int64(1000), "x-queue-type": "quorum", "ratio": 0.5, "flag": true}, Effective: Arguments{"max-length": int64(9)},
			}}},
	} {
		queues, err := answers(t, "?columns="+row.columns, row.answer).Queues(t.Context(), row.columns)
		require.NoError(t, err)
		assert.Equal(t, row.want, queues)
	}
	// Without the collector of its metrics, the broker states no numbers: that is not 0.
	_, err := answers(t, "?columns="+Depths, `[{"name":"orders","type":"quorum"},{"name":"dead"}]`).Queues(t.Context(), Depths)
	require.ErrorContains(t, err, "disable_metrics_collector")
}

// TestLimits: policies that are not stated are not taken for none.
func TestLimits(t *testing.T) {
	for answer, want := range map[string]Queue{
		`{"type":"quorum","auto_delete":true,"arguments":{"x-delivery-limit":-1}}`: {
			Type: "quorum", AutoDelete: true, Arguments: Arguments{"x-delivery-limit": int64(-1)},
		},
		`{"type":"quorum","arguments":null,"effective_policy_definition":null}`: {Type: "quorum"},
		`{"type":"classic","arguments":{},"effective_policy_definition":[]}`: {
			Type: "classic", Arguments: Arguments{}, Effective: Arguments{},
		},
		`{"type":"quorum","arguments":[],"effective_policy_definition":{"delivery-limit":3}}`: {
			Type: "quorum", Arguments: Arguments{}, Effective: Arguments{"delivery-limit": int64(3)},
		},
	} {
		c := answers(t, "/orders.dead?columns=type,auto_delete,arguments,effective_policy_definition", answer)
		queue, err := c.Limits(t.Context(), "orders.dead")
		require.NoError(t, err)
		assert.Equal(t, want, queue)
	}
}

// refuses answers a request as RabbitMQ does.
func refuses(status int, reason string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"error":"not_authorised","reason":%q}`, reason)
	}
}

func TestFaultsOfTheAPI(t *testing.T) {
	for want, handler := range map[string]http.HandlerFunc{
		`401 Unauthorized: the password of the user "shop" is wrong`:                     refuses(401, "Login failed"),
		`401 Unauthorized: the password is accepted, but the user "shop" needs the tag`:  refuses(401, "Not management user"),
		`403 Forbidden: the password is accepted, but the user "shop" needs the tag`:     refuses(403, ""),
		`401 Unauthorized: the user "shop" needs permissions for the virtual host "a/b"`: refuses(401, "User not authorised to access virtual host"),
		`404 Not Found: the user "shop" needs permissions for the virtual host "a/b"`:    refuses(404, "Not Found"),
		"503 Service Unavailable: is this the address":                                   refuses(503, ""),
		"302 Found": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		},
		"cannot be read": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprint(w, "<html>"+strings.Repeat("x", 1<<20))
		},
		"does not answer": func(w http.ResponseWriter, _ *http.Request) {
			connection, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_ = connection.Close()
			}
		},
		"it took too long": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(want, func(t *testing.T) {
			c := client(t, handler)
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			if want != "it took too long" {
				ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
			}
			defer cancel()
			_, err := c.Queues(ctx, Names)
			require.ErrorContains(t, err, want)
			assert.NotContains(t, fmt.Sprintf("%v %+v %#v", err, err, err), "ary")
			assert.Less(t, len(err.Error()), 300)
		})
	}
}

func TestAFailureOfTheServerIsAskedAgain(t *testing.T) {
	for fails, want := range map[int32]string{3: "", 4: "500 Internal Server Error: the broker has failed"} {
		var asked atomic.Int32
		c := client(t, func(w http.ResponseWriter, r *http.Request) {
			if asked.Add(1) <= fails {
				refuses(500, "")(w, r)
				return
			}
			_, _ = fmt.Fprint(w, `[{"name":"orders"}]`)
		})
		all, err := c.Queues(t.Context(), Names)
		assert.EqualValues(t, 4, asked.Load())
		if want != "" {
			require.ErrorContains(t, err, want)
			continue
		}
		require.NoError(t, err)
		assert.Len(t, all, 1)
	}
}

func TestAddresses(t *testing.T) {
	for _, address := range []string{"http://user:canary@localhost:15672", "https://user:can%2Fary@broker/prefix/"} {
		assert.NoError(t, Validate(address))
		assert.NotContains(t, Redacted(address), "ary")
		assert.Contains(t, Redacted(address), "user:xxxxx@")
	}
	for _, address := range []string{
		"amqp://user:canary@localhost:5672", "localhost:15672", "http://user:can/ary@localhost", "http://user:canary@",
		"http://user:canary@localhost:x", "http://user:canary@localhost/?a=b", "http://user:canary%@localhost", "canary",
	} {
		err := Validate(address)
		require.ErrorContains(t, err, "must be like http://host:15672 or http://user:password@host:15672", address)
		assert.NotContains(t, err.Error(), "ary")
		assert.NotContains(t, Redacted(address), "ary", address)
	}
	assert.Empty(t, Redacted(""))
}

// TestAddressesWithoutAPassword have the user and the password of the broker, but no other user gets that password.
func TestAddressesWithoutAPassword(t *testing.T) {
	broker := Broker{Vhost: "/", User: "shop", Password: "secret"}
	for address, want := range map[string]string{
		"http://localhost:15672": "shop secret", "http://shop@localhost:15672": "shop secret", "http://other@localhost:15672": "other ",
		"http://shop:new@localhost:15672": "shop new", "http://other:new@localhost:15672": "other new",
	} {
		assert.NoError(t, Validate(address))
		c, err := New(address, broker)
		require.NoError(t, err)
		assert.Equal(t, want, c.user+" "+c.password, address)
	}
}

// TestAbout: only an administrator's permissions are asked for.
func TestAbout(t *testing.T) {
	for tag, want := range map[string]*Permissions{"management": nil, "administrator": {Configure: "^$", Write: "a", Read: ".*"}} {
		c := client(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
			path, _, _ := strings.Cut(r.RequestURI, "?")
			_, _ = fmt.Fprint(w, map[string]string{
				"/api/overview":                `{"rabbitmq_version":"4.3.6","erlang_version":"29.1"}`,
				"/api/whoami":                  `{"name":"a/b","tags":["` + tag + `"]}`,
				"/api/permissions/a%2Fb/a%2Fb": `{"user":"a/b","configure":"^$","write":"a","read":".*"}`,
			}[path])
		})
		about, err := c.About(t.Context())
		require.NoError(t, err)
		assert.InDelta(t, 3600, int(*about.Ahead), 1)
		about.Ahead = nil
		assert.Equal(t, About{Version: "4.3.6", Erlang: "29.1", User: "a/b", Tags: []string{tag}, Permissions: want}, about)
	}
	assert.Nil(t, AheadOf(http.Header{}, time.Now(), time.Now()))
}

func TestExchangesAndBindings(t *testing.T) {
	c := client(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.RequestURI, "/api/exchanges/a%2Fb?") {
			_, _ = fmt.Fprint(w, `[{"name":"retry","type":"direct","durable":true,"arguments":{"alternate-exchange":"other"}}]`)
			return
		}
		assert.Contains(t, r.RequestURI, "/api/bindings/a%2Fb?")
		_, _ = fmt.Fprint(w, `[{"source":"","destination":"q","destination_type":"queue","routing_key":"q"},`+
			`{"source":"retry","destination":"q","destination_type":"queue","routing_key":"1s.q"},`+
			`{"source":"retry","destination":"q","destination_type":"exchange","routing_key":"2s.q"}]`)
	})
	exchanges, err := c.Exchanges(t.Context())
	require.NoError(t, err)
	assert.Equal(t, map[string]Exchange{"retry": {Name: "retry", Type: "direct", Durable: true, Arguments: Arguments{"alternate-exchange": "other"}}}, exchanges)
	bindings, err := c.Bindings(t.Context())
	require.NoError(t, err)
	assert.Equal(t, map[Binding]bool{{"retry", "q", "1s.q"}: true}, bindings)
}

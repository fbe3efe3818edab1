package backend

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAddresses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		kind, place, user, password string
		needs                       bool
	}{
		"amqp://guest:guest@localhost:5672/%2F":                   {"RabbitMQ", "localhost:5672", "guest", "guest", false},
		"amqps://shop@broker/":                                    {"RabbitMQ", "broker", "shop", "", true},
		"redis://127.0.0.1:6379/2":                                {"Redis", "127.0.0.1:6379", "", "", false},
		"rediss://shop:a,b@10.0.0.1:1,10.0.0.2:2?dial_timeout=1s": {"Redis", "10.0.0.1:1,10.0.0.2:2", "shop", "a,b", false},
		"nats://shop@a:4222,b:4222":                               {"NATS", "a:4222,b:4222", "shop", "", true},
		"postgres://shop@db/shop?sslmode=disable":                 {"PostgreSQL", "db", "shop", "", false},
		"postgresql://shop:x%40y@[::1]:5433/shop":                 {"PostgreSQL", "[::1]:5433", "shop", "x@y", false},
		"kafka://a:9092,b:9092,[::1]:9092":                        {"Kafka", "a:9092,b:9092,[::1]:9092", "", "", false},
	} {
		a, err := Parse(text)
		require.NoError(t, err, text)
		user, password, _ := a.User()
		assert.Equal(t, want.kind, a.Kind.Name, text)
		assert.Equal(t, want.place, a.Place(), text)
		assert.Equal(t, want.user+":"+want.password, user+":"+password, text)
		assert.Equal(t, want.needs, a.NeedsPassword(), text)
		again, err := Parse(a.String())
		require.NoError(t, err, text)
		assert.Equal(t, a.String(), again.String(), text)
		if user != "" {
			assert.NotEqual(t, a.String(), a.With("other").String(), text)
			_, password, _ = a.With("other").User()
			assert.Equal(t, "other", password, text)
		}
	}
	for text, want := range map[string]string{
		"amqp://guest:secret@localhost:5672/%2Fshop?heartbeat=5": "amqp://localhost:5672/%2Fshop",
		"redis://:secret@127.0.0.1:6379/2":                       "redis://127.0.0.1:6379/2",
		"nats://secret@a:4222,b:4222":                            "nats://a:4222,b:4222",
		"postgres://shop:secret@db/shop?sslmode=disable":         "postgres://db/shop",
		"kafka://shop:secret@a:9092,b:9092":                      "kafka://a:9092,b:9092",
	} {
		a, err := Parse(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, a.Where(), "the address of a summary")
	}
	a, err := Parse("kafka://a,b:9093,[::1]")
	require.NoError(t, err)
	assert.Equal(t, []string{"a:9092", "b:9093", "[::1]:9092"}, a.hosts())
	for text, want := range map[string]string{
		"":                              "is not an address of a backend: it must be like amqp://user@host:5672/, redis://",
		"mysql://shop:secret@db":        "is not an address of a backend",
		"localhost:5672":                "is not an address of a backend",
		"redis://":                      "is not an address of Redis: it must be like redis://default@host:6379",
		"nats://shop:se%cret@a:4222":    "is not an address of NATS",
		"kafka://shop:secret/x@a:1,b:2": "has an @ after its host",
		"redis://shop:12/secret@a:1":    "has an @ after its host",
		"rediss://shop:/secret@a:1":     "has an @ after its host",
		"nats://shop:12#secret@a:1":     "has an @ after its host",
		"postgres://shop:1?secret@a/b":  "must be percent-encoded (an @ is %40), as in postgres://user@host/database",
		"amqp://shop:12/secret@a/":      "has an @ after its host",
		"postgres://db?password=secret": "has a password in its parameters",
	} {
		_, err := Parse(text)
		require.ErrorContains(t, err, want, text)
		assert.NotContains(t, err.Error(), "cret", text)
	}
}

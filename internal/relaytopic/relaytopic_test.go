package relaytopic_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/relaytopic"
)

// No two groups and topics share a key, and each key is one that every backend takes.
func TestKeysAreUniqueAndSafe(t *testing.T) {
	long := strings.Repeat("l", 200)
	seen := map[string][2]string{}
	for _, of := range [][2]string{
		{"billing", "orders"}, {"billing", "orders.eu"}, {"billing.orders", "eu"}, {"billing", ""}, {"billing.orders", ""},
		{"billing", "orders/eu"}, {"billing", "orders eu"}, {"billing", "orders_eu"}, {"billing", "bestellungen-ä"},
		{long, "orders"}, {long + "x", "orders"}, {"billing", long}, {"billing", long + "x"}, {"", "orders"},
		{"billing", strings.Repeat("l", 142)}, {"a\x00", "b"}, {"a\xff", "b"}, {"a\xfe", "b"},
	} {
		key := relaytopic.Key(of[0], of[1])
		other, taken := seen[key]
		if of[1] == "" || other[1] == "" { // a handler's key is one of a Pub/Sub without groups
			taken = false
		}
		assert.False(t, taken, "%q is the key of %q and of %q", key, of, other)
		seen[key] = of
		assert.True(t, relaytopic.IsKey(key), key)
	}
	assert.Equal(t, "billing.orders", relaytopic.Key("billing", "orders"))
	assert.Equal(t, "billing", relaytopic.Key("billing", ""))
	assert.Contains(t, relaytopic.Key("billing", "orders eu"), "billing.orders_eu-")
}

func TestNamesOfTopics(t *testing.T) {
	names := relaytopic.Names{}
	assert.Equal(t, "retry.return.billing.orders", names.Return("billing.orders"))
	assert.Equal(t, "retry.return.billing.orders", names.ReturnOf(names.Dead("billing.orders")))
	assert.Empty(t, names.ReturnOf(names.Dead(relaytopic.Unknown)))
	assert.Empty(t, names.ReturnOf("orders"))
	assert.True(t, names.IsReturn("retry.return.x") && names.IsDead("retry.dead.x") && names.IsOwn("retry.1s"))
	assert.False(t, names.IsReturn("retry.dead.x") || names.IsDead("retry.return.x") || names.IsOwn("orders"))
	require.NoError(t, relaytopic.Names{Prefix: strings.Repeat("p", 40)}.Validate())
	for _, prefix := range []string{strings.Repeat("p", 41), "a b", "ä"} {
		require.ErrorContains(t, relaytopic.Names{Prefix: prefix}.Validate(), "at most 40 characters", prefix)
	}
}

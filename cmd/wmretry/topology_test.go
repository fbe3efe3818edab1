package main

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestExportedPermissionsSuffice runs an app and the commands as users that have exactly the exported permissions.
func TestExportedPermissionsSuffice(t *testing.T) {
	t.Parallel()
	name := unique(t, "wmretry_roles")
	t.Cleanup(func() { removeAll(t, name) })
	work, other := "orders_"+name, "other_"+name
	address := usersOf(t, name, "--queue", work, "--prefix", name, "--schedule", "100ms 1h")
	as := func(code int, role string, args ...string) result {
		t.Helper()
		return runWith(t, code, address[role], append(args, "--prefix", name)...)
	}

	q := &queues{t: t, work: work, dead: work + ".dead", prefix: name, channel: channelOf(t)}
	_, stop := runApp(t, config.Config{
		AMQP:     amqp.NewDurableQueueConfig(strings.TrimPrefix(address["app"][0], "AMQP_URL=")),
		Policy:   retry.Policy{Schedule: backoff.Schedule{100 * time.Millisecond, time.Hour}},
		Settings: rabbitmq.Settings{Prefix: name},
	}, func(rabbit retry.Connection, router *message.Router) {
		rabbit.AddConsumerHandler(router, "orders", work, func(*message.Message) error { return backoff.Permanent(os.ErrInvalid) })
	})
	for i := range 3 {
		msg, err := amqp.DefaultMarshaler{}.Marshal(message.NewMessage(watermill.NewUUID(), []byte{byte('0' + i)}))
		require.NoError(t, err)
		send(t, q.channel, "", work, msg)
	}
	q.await(q.dead, 3)
	stop()
	send(t, q.channel, name+".orphans", "1h."+work, amqp091.Publishing{Headers: amqp091.Table{uuidHeader: "orphan"}, Body: []byte("{}")})
	q.await(name+".orphans", 1)

	assert.Len(t, lines[map[string]any](t, as(0, "viewer", "dead", "list", work, "--json").stdout), 3)
	as(0, "viewer", "dead", "list", name+".orphans")
	as(0, "viewer", "dead", "export", work, "-o", filepath.Join(t.TempDir(), "letters.jsonl"))
	as(0, "viewer", "status")
	assert.Contains(t, as(1, "viewer", "dead", "redrive", work).stderr, "ACCESS_REFUSED")
	assert.Contains(t, as(1, "viewer", "dead", "discard", work, "--yes").stderr, "ACCESS_REFUSED")

	assert.Contains(t, as(0, "redriver", "dead", "redrive", work, "--limit", "2").stdout, "2  sent back")
	q.await(work, 2)
	as(0, "redriver", "dead", "redrive", name+".orphans")
	q.await(work, 3)
	copied := filepath.Join(t.TempDir(), "letters.jsonl")
	as(0, "redriver", "dead", "discard", work, "--yes", "--export", copied)
	as(0, "redriver", "dead", "import", copied)
	q.await(q.dead, 1)
	assert.Contains(t, as(1, "redriver", "tiers", "drain", work, "1h").stderr, "ACCESS_REFUSED")

	q.wait("1h", 2)
	as(0, "operator", "tiers", "drain", work, "1h")
	q.await(work, 5)
	as(0, "operator", "topology", "plan", "--queue", work, "--schedule", "100ms 1h")
	_, err := q.channel.QueueDelete(q.dead, false, false, false)
	require.NoError(t, err)
	as(0, "operator", "topology", "apply", "--queue", work, "--schedule", "100ms 1h")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		prune := []string{"tiers", "prune", "--queue", work, "--schedule", "100ms", "--prefix", name}
		r := start(t, address["operator"], prune...).wait()
		assert.Zero(c, r.code, r.stderr)
	}, patience, time.Second, "the broker states the numbers of new queues only some seconds after they were declared")
	as(0, "operator", "dead", "list", work)
	assert.Contains(t, as(1, "operator", "topology", "apply", "--queue", other, "--schedule", "1h").stderr, "ACCESS_REFUSED")
}

// usersOf makes a user of each exported role, and returns the environment of each.
func usersOf(t testing.TB, name string, flags ...string) map[string][]string {
	t.Helper()
	exported := run(t, 0, append([]string{"topology", "export", "--permissions"}, flags...)...).stdout
	address := map[string][]string{}
	client := managementOf(t)
	commands := regexp.MustCompile(`(?m)^rabbitmqctl set_permissions -p '/' (\w+) '(.*)' '(.*)' '(.*)'$`)
	for _, command := range commands.FindAllStringSubmatch(exported, -1) {
		role, tag := command[1], ""
		if strings.Contains(exported, "rabbitmqctl set_user_tags "+role+" management\n") {
			tag = "management"
		}
		user := name + "_" + role
		_, err := client.PutUser(user, rabbithole.UserSettings{Password: "canary", Tags: rabbithole.UserTags{tag}})
		require.NoError(t, err)
		t.Cleanup(func() { _, _ = client.DeleteUser(user) })
		_, err = client.UpdatePermissionsIn("/", user, rabbithole.Permissions{Configure: command[2], Write: command[3], Read: command[4]})
		require.NoError(t, err)
		uri, err := url.Parse(brokerURL(t))
		require.NoError(t, err)
		uri.User = url.UserPassword(user, "canary")
		address[role] = []string{"AMQP_URL=" + uri.String(), "AMQP_MANAGEMENT_URL=" + client.Endpoint}
	}
	return address
}

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
	q := newRoles(t, "--schedule", "100ms 1h")
	name, work, as := q.prefix, q.work, q.as
	stop := q.run(retry.Policy{Schedule: backoff.Schedule{100 * time.Millisecond, time.Hour}},
		func(*message.Message) error { return backoff.Permanent(os.ErrInvalid) })
	for range 3 {
		q.publish(nil)
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
		r := start(t, q.environ["operator"], prune...).wait()
		assert.Zero(c, r.code, r.stderr)
	}, patience, time.Second, "the broker states the numbers of new queues only some seconds after they were declared")
	as(0, "operator", "dead", "list", work)
	assert.Contains(t, as(1, "operator", "topology", "apply", "--queue", "other_"+name, "--schedule", "1h").stderr, "ACCESS_REFUSED")
}

// roles are users with the exported permissions for a work queue and a prefix of their own.
type roles struct {
	*queues
	environ map[string][]string // of each role
}

func newRoles(t testing.TB, flags ...string) *roles {
	t.Helper()
	name := unique(t, "wmretry_roles")
	t.Cleanup(func() { removeAll(t, name) })
	work := "orders_" + name
	r := &roles{&queues{t: t, work: work, dead: work + ".dead", prefix: name, channel: channelOf(t)}, map[string][]string{}}
	args := []string{"topology", "export", "--permissions", "--queue", work, "--prefix", name}
	exported := run(t, 0, append(args, flags...)...).stdout
	client := managementOf(t)
	commands := regexp.MustCompile(`(?m)^rabbitmqctl set_permissions -p '/' (\w+) '(.*)' '(.*)' '(.*)'$`)
	for _, command := range commands.FindAllStringSubmatch(exported, -1) {
		role, tag := command[1], ""
		if strings.Contains(exported, "rabbitmqctl set_user_tags "+role+" management\n") {
			tag = "management"
		}
		user := name + "_" + role
		_, err := client.PutUser(user, rabbithole.UserSettings{Password: "correct-horse", Tags: rabbithole.UserTags{tag}})
		require.NoError(t, err)
		t.Cleanup(func() { _, _ = client.DeleteUser(user) })
		_, err = client.UpdatePermissionsIn("/", user, rabbithole.Permissions{Configure: command[2], Write: command[3], Read: command[4]})
		require.NoError(t, err)
		uri, err := url.Parse(brokerURL(t))
		require.NoError(t, err)
		uri.User = url.UserPassword(user, "correct-horse")
		r.environ[role] = []string{"AMQP_URL=" + uri.String(), "AMQP_MANAGEMENT_URL=" + client.Endpoint}
	}
	return r
}

// as runs the command as a user of a role, and requires an exit code, and that it does not print the password.
func (r *roles) as(code int, role string, args ...string) result {
	r.t.Helper()
	ended := runWith(r.t, code, r.environ[role], append(args, "--prefix", r.prefix)...)
	assert.NotContains(r.t, ended.stdout+ended.stderr, "correct-horse")
	return ended
}

// run runs an app as its role, with a handler of the work queue.
func (r *roles) run(policy retry.Policy, handle message.NoPublishHandlerFunc, options ...retry.Options) (stop func()) {
	r.t.Helper()
	_, stop = runApp(r.t, config.Config{
		AMQP:     amqp.NewDurableQueueConfig(strings.TrimPrefix(r.environ["app"][0], "AMQP_URL=")),
		Settings: rabbitmq.Settings{Prefix: r.prefix}, Policy: policy,
	}, func(rabbit retry.Connection, router *message.Router) {
		rabbit.AddConsumerHandler(router, "ship", r.work, handle, options...)
	})
	return stop
}

// publish publishes a message with this metadata to the work queue.
func (r *roles) publish(metadata message.Metadata) {
	r.t.Helper()
	msg := message.NewMessage(watermill.NewUUID(), []byte("{}"))
	msg.Metadata = metadata
	published, err := amqp.DefaultMarshaler{}.Marshal(msg)
	require.NoError(r.t, err)
	send(r.t, r.channel, "", r.work, published)
}

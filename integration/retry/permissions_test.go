package retry_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// permitted has what a user needs for the queue orders and the prefix retry, and for the group shop in addition.
// docs/operations.md states those of an app that only verifies: internal/layout compares them.
var permitted = map[string]string{
	"declares":            `^(orders(\.dead|\.retry\..*)?|retry(\.return(\.any)?|\.orphans)?)$`,
	"declares in a group": `^shop\.retry(\..*)?$`,
	"verifies: write":     `^retry$`,
	"verifies: read":      `^(orders(\.dead|\.retry\..*)?|retry\.(return(\.any)?|orphans))$`,
	"in a group: write":   `^shop\.retry$`,
	"in a group: read":    `^shop\.retry\..*$`,
	"reads dead letters":  `^orders\.dead$`,
}

// permission returns a regular expression of permitted, for the names of a test.
func permission(what, queue, prefix string) string {
	return strings.NewReplacer("orders", queue, "retry", prefix).Replace(permitted[what])
}

// TestDocumentedPermissionsSuffice runs two apps with these permissions. The first declares its objects, and
// declares a deleted dead-letter queue again. The second only verifies.
func TestDocumentedPermissionsSuffice(t *testing.T) {
	t.Parallel()
	a := testapp.NewParts(t)
	queue := a.Queue("orders")
	limited := func(t *testing.T, user string, verify bool) *testapp.Parts {
		return testapp.NewParts(t, func(b *config.Config) {
			b.AMQP.Connection.AmqpURI = broker.WithUser(t, user, user)
			b.Prefix, b.VerifyOnly = a.Name, verify
		})
	}
	fails := func(*message.Message) error { return errDown }
	verifying := broker.User(t, "^$", permission("verifies: write", queue, a.Name), permission("verifies: read", queue, a.Name))
	assert.ErrorContains(t, subscribe(t, limited(t, verifying, true), queue), a.Name, "it declares nothing")

	pattern := permission("declares", queue, a.Name)
	t.Run("declares", func(t *testing.T) {
		user := broker.User(t, pattern, pattern, pattern)
		app := limited(t, user, false)
		app.Handle(queue, 2, fails)
		app.Run()
		testapp.Send(t, "", queue, testapp.Orders(5)...)
		dead := testapp.NewLedger()
		for _, letter := range testapp.Take(t, queue+".dead", 5) {
			dead.Add(string(letter.Body))
		}
		assert.Empty(t, dead.Twice())
		testapp.Delete(t, queue+".dead")
		testapp.Send(t, "", queue, testapp.Orders(1)...)
		broker.Eventually(t, 60*time.Second, func() bool {
			return len(app.Events(retry.DeadLettered)) == 6
		}, "the sixth dead letter")
		assert.Equal(t, 1, len(testapp.Take(t, queue+".dead", 1)))
	})
	t.Run("only verifies", func(t *testing.T) {
		app := limited(t, verifying, true)
		app.Handle(queue, 2, fails)
		app.Run()
		testapp.Send(t, "", queue, testapp.Orders(5)...)
		dead := testapp.NewLedger()
		for _, letter := range testapp.Take(t, queue+".dead", 5) {
			dead.Add(string(letter.Body))
		}
		assert.Empty(t, dead.Twice())
	})
}

// TestDocumentedPermissionsSufficeInAGroup: one work queue is a classic queue, with an inbox, the other one is new.
func TestDocumentedPermissionsSufficeInAGroup(t *testing.T) {
	t.Parallel()
	a := testapp.NewParts(t)
	declares, writes, reads := []string{}, []string{}, []string{}
	queues := []string{a.Queue("orders"), a.Queue("classic")}
	group := "g_" + a.Name
	inGroup := func(what, queue string) string {
		return strings.ReplaceAll(permission(what, queue, a.Name), "shop", group)
	}
	for _, queue := range queues {
		declares = append(declares, inGroup("declares", queue), inGroup("declares in a group", queue))
		writes = append(writes, inGroup("verifies: write", queue), inGroup("in a group: write", queue))
		reads = append(reads, inGroup("verifies: read", queue), inGroup("in a group: read", queue))
	}
	all := strings.Join(declares, "|")
	_, err := broker.Channel(t).QueueDeclare(queues[1], true, false, false, false, nil)
	require.NoError(t, err)
	t.Run("declares", func(t *testing.T) {
		failInGroup(t, a.Name, group, broker.User(t, all, all, all), queues, false)
	})
	t.Run("only verifies", func(t *testing.T) {
		failInGroup(t, a.Name, group, broker.User(t, "^$", strings.Join(writes, "|"), strings.Join(reads, "|")), queues, true)
	})
}

// failInGroup runs an app with these work queues until one message of each is a dead letter.
func failInGroup(t *testing.T, prefix, group, user string, queues []string, verify bool) {
	t.Helper()
	app := testapp.NewParts(t, func(b *config.Config) {
		b.AMQP.Connection.AmqpURI = broker.WithUser(t, user, user)
		b.Prefix, b.VerifyOnly, b.Policy.TierGroup, b.Policy.ExtraTiers = prefix, verify, group, b.Policy.Schedule
	})
	for _, queue := range queues {
		app.Handle(queue, 1, func(*message.Message) error { return errDown })
	}
	app.Run()
	for _, queue := range queues {
		testapp.Send(t, "", queue, testapp.Orders(1)...)
		testapp.Take(t, queue+".dead", 1)
	}
}

// permissions contains the regular expressions of a user's permissions.
type permissions struct{ configure, write, read string }

// without removes an object from one of the expressions.
func (p permissions) without(object, kind string) permissions {
	pattern := map[string]*string{"configure": &p.configure, "write": &p.write, "read": &p.read}[kind]
	*pattern = strings.Replace(*pattern, "^", "^(?!"+object+"$)", 1)
	return p
}

// runs starts an app with these permissions and one message that fails until it is dead-lettered. It returns the first refusal.
func (p permissions) runs(t *testing.T, queue string, change ...func(*config.Config)) error {
	t.Helper()
	user := broker.User(t, p.configure, p.write, p.read)
	a := testapp.NewParts(t, append(change, func(b *config.Config) { b.AMQP.Connection.AmqpURI = broker.WithUser(t, user, user) })...)
	if err := subscribe(t, a, queue); err != nil {
		return err
	}
	a.Handle(queue, 1, func(*message.Message) error { return errDown })
	a.Run()
	testapp.Send(t, "", queue, testapp.Orders(1)...)
	var refused error
	broker.Eventually(t, 60*time.Second, func() bool {
		if lines := a.Log.Lines("ACCESS_REFUSED"); len(lines) > 0 {
			refused = errors.New(lines[0])
		}
		return refused != nil || len(a.Events(retry.DeadLettered)) == 1
	}, "the message is dead-lettered, or the broker has refused something")
	return refused
}

// TestDocumentedPermissionsAreTheLeast removes each object in turn from the permissions. The broker then refuses an operation.
func TestDocumentedPermissionsAreTheLeast(t *testing.T) {
	t.Parallel()
	for _, verify := range []bool{false, true} {
		for _, kind := range []string{"configure", "write", "read"} {
			for _, object := range []string{"Q", "Q.dead", "Q.P.*", "P", "P.return", "P.return.any", "P.orphans"} {
				t.Run(fmt.Sprintf("verify %t, %s, %s", verify, kind, object), func(t *testing.T) {
					t.Parallel()
					a := testapp.NewParts(t, testapp.Schedule(100*time.Millisecond))
					queue := a.Queue("orders")
					all := permission("declares", queue, a.Name)
					p := permissions{all, all, all}
					if verify {
						a.Declare(queue)
						p = permissions{"^$", permission("verifies: write", queue, a.Name), permission("verifies: read", queue, a.Name)}
					}
					name := strings.NewReplacer("Q", queue, "P", a.Name, "*", "100ms").Replace(object)
					pattern := map[string]string{"configure": p.configure, "write": p.write, "read": p.read}[kind]
					if !regexp.MustCompile(pattern).MatchString(name) {
						require.True(t, verify, "the permissions do not include %s", name)
						return
					}
					needed := true
					switch {
					case !verify && kind == "read" && object == "Q.dead": // only a reader of dead letters needs it: see the test below
						needed = false
					case verify && kind == "read" && object != "Q":
						needed = generationOf(t).permitsPassive
					}
					err := p.without(regexp.QuoteMeta(name), kind).runs(t, queue, testapp.Schedule(100*time.Millisecond), func(b *config.Config) {
						b.Prefix, b.VerifyOnly = a.Name, verify
					})
					if needed {
						assert.ErrorContains(t, err, "ACCESS_REFUSED")
						assert.ErrorContains(t, err, "'"+name+"'")
					} else {
						assert.NoError(t, err)
					}
				})
			}
		}
	}
}

// TestMissingPermissionToPublish: Subscribe has the error, before a message fails. A work queue that is left unchanged
// has no dead-letter exchange, so declaring it needs no permission for one.
func TestMissingPermissionToPublish(t *testing.T) {
	t.Parallel()
	a := testapp.NewParts(t)
	user := broker.User(t, ".*", a.Name+".return(.any)?|"+a.Name+".orphans|orders.*|amq.default", ".*")
	denied := testapp.NewParts(t, func(b *config.Config) {
		b.AMQP.Connection.AmqpURI = broker.WithUser(t, user, user)
		b.Prefix, b.WorkQueueMode = a.Name, topology.Leave
	})
	err := subscribe(t, denied, a.Queue("orders"))
	require.ErrorContains(t, err, `"`+a.Name+`"`)
	assert.NotContains(t, err.Error(), ":"+user, "the password")
}

// TestPermissionToReadDeadLetters: only a client that reads dead letters needs it, and it needs no other.
func TestPermissionToReadDeadLetters(t *testing.T) {
	t.Parallel()
	a := testapp.NewParts(t)
	queue := a.Queue("orders")
	a.Declare(queue)
	testapp.Send(t, "", queue+".dead", testapp.Orders(1)...)
	all := permission("declares", queue, a.Name)
	ofApp := permissions{all, all, all}
	for name, test := range map[string]struct {
		permissions
		may bool
	}{
		"all but read":     {ofApp.without(regexp.QuoteMeta(queue+".dead"), "read"), false},
		"those of the app": {ofApp, true},
		"only read":        {permissions{"^$", "^$", permission("reads dead letters", queue, a.Name)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			user, log := broker.User(t, test.configure, test.write, test.read), &testapp.Log{}
			reader, err := config.DeadLetterSubscriberConfig(amqp.NewDurableQueueConfig(broker.WithUser(t, user, user)), "")
			require.NoError(t, err)
			subscriber, err := amqp.NewSubscriber(reader, log)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, subscriber.Close()) })
			letters, err := subscriber.Subscribe(t.Context(), queue)
			require.NoError(t, err)
			if !test.may {
				broker.Eventually(t, 60*time.Second, func() bool { return log.Count("ACCESS_REFUSED") > 0 }, "reading is refused")
				return
			}
			next(t, letters).Nack()
		})
	}
}

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

// fails is an app that handles a message of each queue without success, as a user with these permissions. It returns the
// first refusal, or nothing once all are dead letters.
func (p permissions) fails(t *testing.T, queues []string, change func(*config.Config)) error {
	t.Helper()
	user := broker.User(t, p.configure, p.write, p.read)
	a := testapp.NewParts(t, testapp.Schedule(100*time.Millisecond), change, func(b *config.Config) {
		b.AMQP.Connection.AmqpURI = broker.WithUser(t, user, user)
	})
	for _, queue := range queues {
		if err := subscribe(t, a, queue); err != nil {
			return err
		}
		a.Handle(queue, 1, func(*message.Message) error { return errDown })
	}
	a.Run()
	for _, queue := range queues {
		testapp.Send(t, "", queue, testapp.Orders(1)...)
	}
	var refused error
	testapp.Eventually(t, func() bool {
		if lines := a.Log.Lines("ACCESS_REFUSED"); len(lines) > 0 {
			refused = errors.New(lines[0])
		}
		return refused != nil || len(a.Events(retry.DeadLettered)) == len(queues)
	}, "the messages are dead-lettered, or the broker has refused something")
	return refused
}

// permissions contains the regular expressions of a user's permissions.
type permissions struct{ configure, write, read string }

// without removes an object from one of the expressions.
func (p permissions) without(object, kind string) permissions {
	pattern := map[string]*string{"configure": &p.configure, "write": &p.write, "read": &p.read}[kind]
	*pattern = strings.Replace(*pattern, "^", "^(?!"+object+"$)", 1)
	return p
}

// TestDocumentedPermissionsSufficeInAGroup: one work queue is a classic queue, with an inbox, the other one is new. The
// first app declares its objects, the second one verifies them.
func TestDocumentedPermissionsSufficeInAGroup(t *testing.T) {
	t.Parallel()
	a := testapp.NewParts(t)
	queues, group := []string{a.Queue("orders"), a.Queue("classic")}, "g_"+a.Name
	existing(t, queues[1], nil)
	of := func(whats ...string) string {
		var all []string
		for _, queue := range queues {
			for _, what := range whats {
				all = append(all, strings.ReplaceAll(permission(what, queue, a.Name), "shop", group))
			}
		}
		return strings.Join(all, "|")
	}
	declares := of("declares", "declares in a group")
	for _, p := range []permissions{{declares, declares, declares},
		{"^$", of("verifies: write", "in a group: write"), of("verifies: read", "in a group: read")}} {
		require.NoError(t, p.fails(t, queues, func(b *config.Config) {
			b.Prefix, b.VerifyOnly, b.Policy.TierGroup = a.Name, p.configure == "^$", group
		}))
	}
}

// TestDocumentedPermissionsAreTheLeast: they suffice, and without each object in turn the broker refuses an operation.
func TestDocumentedPermissionsAreTheLeast(t *testing.T) {
	t.Parallel()
	passive := is(t, passiveDeclares, "yes")
	for _, verify := range []bool{false, true} {
		for _, kind := range []string{"configure", "write", "read"} {
			objects := []string{"Q", "Q.dead", "Q.P.*", "P", "P.return", "P.return.any", "P.orphans"}
			if kind == "read" {
				objects = append(objects, "nothing") // of each kind that is the same
			}
			for _, object := range objects {
				t.Run(fmt.Sprintf("verify %t, %s, %s", verify, kind, object), func(t *testing.T) {
					t.Parallel()
					a := testapp.NewParts(t, testapp.Schedule(100*time.Millisecond))
					queue := a.Queue("orders")
					all := permission("declares", queue, a.Name)
					p := permissions{all, all, all}
					change := func(b *config.Config) { b.Prefix, b.VerifyOnly = a.Name, verify }
					if verify {
						p = permissions{"^$", permission("verifies: write", queue, a.Name), permission("verifies: read", queue, a.Name)}
					}
					name := strings.NewReplacer("Q", queue, "P", a.Name, "*", "100ms").Replace(object)
					pattern := map[string]string{"configure": p.configure, "write": p.write, "read": p.read}[kind]
					if object != "nothing" && !regexp.MustCompile(pattern).MatchString(name) {
						require.True(t, verify, "the permissions do not include %s", name)
						return
					}
					if verify {
						if object == "nothing" {
							assert.ErrorContains(t, p.fails(t, []string{queue}, change), a.Name, "it declares nothing")
						}
						a.Declare(queue)
					}
					needed := object != "nothing"
					switch {
					case !verify && kind == "read" && object == "Q.dead": // only a reader of dead letters needs it: see the test below
						needed = false
					case needed && verify && kind == "read" && object != "Q":
						needed = passive
					}
					err := p.without(regexp.QuoteMeta(name), kind).fails(t, []string{queue}, change)
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
		"all but read": {ofApp.without(regexp.QuoteMeta(queue+".dead"), "read"), false},
		"only read":    {permissions{"^$", "^$", permission("reads dead letters", queue, a.Name)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			user, log := broker.User(t, test.configure, test.write, test.read), &testapp.Log{}
			letters, err := reader(t, amqp.NewDurableQueueConfig(broker.WithUser(t, user, user)), "", log).Subscribe(t.Context(), queue)
			require.NoError(t, err)
			if !test.may {
				broker.Eventually(t, 60*time.Second, func() bool { return log.Count("ACCESS_REFUSED") > 0 }, "reading is refused")
				return
			}
			broker.Receive(t, letters, "a letter").Nack()
		})
	}
}

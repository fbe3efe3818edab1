package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/postgresretry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
)

// grants are the statements of the page.
func grants(t *testing.T, role string) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/other-pubsubs.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "## Rights on PostgreSQL")
	require.True(t, found)
	all := regexp.MustCompile(`(?m)^GRANT .* TO app;$`).FindAllString(section, -1)
	require.NotEmpty(t, all)
	for i := range all {
		all[i] = strings.Replace(all[i], " TO app;", " TO "+role, 1)
	}
	return all
}

// TestPostgresRightsOfThePage: with them, and no others, a role retries, dead-letters, publishes and redrives. Without
// one of them, Connect or Run fails and names it, unless it is for Publish.
func TestPostgresRightsOfThePage(t *testing.T) {
	p := startPostgres(t)
	p.exec(`REVOKE ALL ON SCHEMA public FROM PUBLIC`)
	p.exec(`ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC`)
	owner, stop := p.app(p.config(), func(*message.Message) error { return nil })
	p.publish(owner, "orders", "of the owner")
	stop()
	role := "app_" + strings.ToLower(rand.Text()[:12])
	p.exec(`CREATE ROLE ` + role + ` LOGIN`)
	limited := p
	limited.url = strings.Replace(p.url, "postgres@", role+"@", 1)
	limited.db = limited.open()
	all := grants(t, role)
	for _, statement := range all {
		p.exec(statement)
	}
	for _, statement := range all {
		for _, lacking := range strings.Split(regexp.MustCompile(`GRANT (.*) ON`).FindStringSubmatch(statement)[1], ", ") {
			_, object, _ := strings.Cut(statement, " ON ")
			object = strings.TrimSuffix(object, " TO "+role)
			p.exec(`REVOKE ` + lacking + ` ON ` + object + ` FROM ` + role)
			err := limited.starts()
			p.exec(statement)
			switch {
			case strings.HasPrefix(object, "SEQUENCE "), object == "watermill_orders" && lacking == "INSERT":
				require.NoError(t, err, "%s on %s", lacking, object)
			case strings.HasPrefix(object, "SCHEMA "):
				require.ErrorContains(t, err, "grant USAGE on their schema")
			default:
				require.ErrorContains(t, err, "lacks rights", "%s on %s", lacking, object)
				_, named, _ := strings.Cut(err.Error(), "functions: ")
				p.exec(`REVOKE ` + lacking + ` ON ` + object + ` FROM ` + role)
				p.exec(named)
				require.NoError(t, limited.starts(), named)
			}
		}
	}

	var seen calls
	retries, _ := limited.app(limited.config(), func(msg *message.Message) error {
		if seen.add(msg) == 1 {
			return errDown
		}
		if msg.UUID == "dead" && len(seen.of("dead")) < 3 {
			return backoff.Permanent(errors.New("never"))
		}
		return nil
	})
	limited.publish(retries, "orders", "1", "dead")
	p.eventually("a message has not come back", func() bool { return len(seen.of("1")) == 2 })
	dead := func() int { return p.count(`SELECT count(*) FROM retry_messages WHERE due = 'infinity'`) }
	p.eventually("there is no dead letter", func() bool { return dead() == 1 })
	store, err := postgresretry.Letters(limited.config(), nil)
	require.NoError(t, err)
	summary, err := store.Redrive(t.Context(), "retry.dead.billing.orders", letters.Redrive{})
	require.NoError(t, err)
	assert.Equal(t, 1, summary.Done)
	p.eventually("the letter has not come", func() bool { return len(seen.of("dead")) == 3 })
	p.eventually("something stays", func() bool { return p.count(`SELECT count(*) FROM retry_messages`) == 0 })
	require.NoError(t, store.Close())
}

// starts connects, runs a handler of orders, and stops.
func (p onPostgres) starts() error {
	retries, err := postgresretry.Connect(p.config(), nil)
	if err != nil {
		return err
	}
	defer func() { assert.NoError(p.t, retries.Close()) }()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(p.t, err)
	retries.AddConsumerHandler(router, "bill", "orders", func(*message.Message) error { return nil })
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
	case err := <-ended:
		return err
	}
	assert.NoError(p.t, router.Close())
	return <-ended
}

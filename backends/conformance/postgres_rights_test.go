package conformance

import (
	"crypto/rand"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/process"
	"github.com/tieredretry/watermill-retry/backends/postgresretry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
)

// grants are the statements of the package documentation.
func grants(t *testing.T, role string) []string {
	t.Helper()
	page, err := os.ReadFile("../postgresretry/doc.go")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "// # Rights")
	require.True(t, found)
	all := regexp.MustCompile(`(?m)^//\tGRANT .* TO app;$`).FindAllString(section, -1)
	require.NotEmpty(t, all)
	for i := range all {
		all[i] = strings.Replace(strings.TrimPrefix(all[i], "//\t"), " TO app;", " TO "+role, 1)
	}
	return all
}

// TestPostgresRightsOfThePage: with them, and no others, a role retries, dead-letters, publishes and redrives. Without
// one of them, Connect or Run fails and names it, unless it is for Publish.
func TestPostgresRightsOfThePage(t *testing.T) {
	p := startPostgres(t)
	p.exec(`REVOKE ALL ON SCHEMA public FROM PUBLIC`)
	p.exec(`ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC`)
	owner := p.connect(p.config()).bills(nothing)
	owner.publish("of the owner")
	owner.stop()
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

	seen := newLedger()
	limited.connect(limited.config()).bills(func(msg *message.Message) error {
		if err := seen.failing(1)(msg); msg.UUID == "dead" && len(seen.of("dead")) == 1 {
			return backoff.Permanent(errDown)
		} else if msg.UUID != "dead" {
			return err
		}
		return nil
	}).publish("1", "dead")
	seen.await(t, 1, 1)
	p.awaitDead(1)
	summary, err := p.store(limited.config()).Redrive(t.Context(), "retry.dead.billing.orders", letters.Redrive{})
	require.NoError(t, err)
	assert.Equal(t, 1, summary.Done)
	p.awaitNothing()
	assert.Len(t, seen.of("dead"), 2)
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
	retries.AddConsumerHandler(router, "bill", orders, nothing)
	ended, err := process.Serve(noContext, router)
	if err != nil {
		return err
	}
	assert.NoError(p.t, router.Close())
	return <-ended
}

// TestPostgresExplainsWhatItDoesNotPublish: the error names the topic, what is wrong with the message or the table, and
// what to do.
func TestPostgresExplainsWhatItDoesNotPublish(t *testing.T) {
	p := startPostgres(t)
	role := "app_" + strings.ToLower(rand.Text()[:12])
	p.exec(`CREATE ROLE ` + role + ` LOGIN`)
	limited := p
	limited.url = strings.Replace(p.url, "postgres@", role+"@", 1)
	limited.db = limited.open()
	publisher := func(p onPostgres) message.Publisher {
		retries, err := postgresretry.Connect(p.config(), nil)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, retries.Close()) })
		return retries.Publisher()
	}
	publish := func(by message.Publisher, uuid string) error {
		return by.Publish("parcels", message.NewMessage(uuid, nil))
	}
	owner := publisher(p)
	require.NoError(t, publish(owner, strings.Repeat("ü", 36)))
	err := publish(owner, strings.Repeat("ü", 37))
	require.ErrorContains(t, err, `topic "parcels"`)
	require.ErrorContains(t, err, `the UUID "`+strings.Repeat("ü", 37)+`" has 37 characters, at most 36`)

	for _, statement := range grants(t, role) {
		if strings.Contains(statement, " retry_messages") || strings.Contains(statement, "SCHEMA") {
			p.exec(statement)
		}
	}
	app := publisher(limited)
	for _, grant := range []string{
		`GRANT INSERT ON TABLE "watermill_parcels" TO ` + role,
		`GRANT USAGE ON SEQUENCE public.watermill_parcels_offset_seq TO ` + role,
	} {
		err = publish(app, "1")
		require.ErrorContains(t, err, `topic "parcels"`)
		_, named, found := strings.Cut(err.Error(), "functions: ")
		require.True(t, found, err)
		named, _, _ = strings.Cut(named, ": ")
		require.Contains(t, named, grant)
		p.exec(grant)
	}
	require.NoError(t, publish(app, "1"))

	p.exec(`DROP TABLE watermill_parcels`)
	err = publish(owner, "2")
	require.ErrorContains(t, err, `the table "watermill_parcels" of topic "parcels" is gone`)
	require.ErrorContains(t, err, "restart the app")
	require.NoError(t, publish(publisher(p), "2"), "an app that starts makes the table")
}

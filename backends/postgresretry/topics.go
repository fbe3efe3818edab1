package postgresretry

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
)

// maxName is the length at which PostgreSQL cuts the names of tables, in bytes.
const maxName = 63

// The app's topics are tables of watermill-sql's Pub/Sub.
var (
	appSchema  = schemaAdapter{wmsql.DefaultPostgreSQLSchema{GeneratePayloadType: bytea}}
	appOffsets = wmsql.DefaultPostgreSQLOffsetsAdapter{}
)

// schemaAdapter is watermill-sql's.
type schemaAdapter struct{ wmsql.DefaultPostgreSQLSchema }

// InsertQuery passes the metadata, the last of three values of a message, as text: a driver that does not ask the
// server for the types of parameters, as behind a pooler, sends bytes as bytea, which is no JSON.
func (s schemaAdapter) InsertQuery(params wmsql.InsertQueryParams) (wmsql.Query, error) {
	query, err := s.DefaultPostgreSQLSchema.InsertQuery(params)
	for i := 2; i < len(query.Args); i += 3 {
		if metadata, is := query.Args[i].([]byte); is {
			query.Args[i] = string(metadata)
		}
	}
	return query, err
}

// bytea is the type of the payload's column in tables that this package makes. With watermill-sql's default, JSON, a
// payload must be JSON.
func bytea(string) string { return "BYTEA" }

var wrongCharacters = regexp.MustCompile(`[^A-Za-z0-9\-\$\:\.\_]`)

// checkTopic refuses the name of an app's topic whose tables would be those of another topic.
func checkTopic(topic string, subscribe bool) error {
	table := appSchema.MessagesTable(topic)
	if subscribe {
		table = appOffsets.MessagesOffsetsTable(topic)
	}
	name := strings.Trim(table, `"`)
	switch {
	case wrongCharacters.MatchString(topic):
		return fmt.Errorf("topic %q: %w", topic, wmsql.ErrInvalidTopicName)
	case len(name) > maxName:
		return fmt.Errorf("topic %q needs a table named %q of %d bytes; PostgreSQL cuts names at %d bytes, and two "+
			"topics could share a table: use a topic of at most %d bytes", topic, name, len(name), maxName,
			maxName-len(name)+len(topic))
	case strings.HasPrefix(topic, "offsets_"):
		return fmt.Errorf("topic %q: its table would be that of the offsets of topic %q: use a topic that does not "+
			"begin with \"offsets_\"", topic, strings.TrimPrefix(topic, "offsets_"))
	}
	return nil
}

// appTopics makes the tables of the app's topics where they do not exist. watermill-sql itself executes CREATE TABLE
// for each topic at each start, which an app that may not create tables cannot.
type appTopics struct {
	db    *sql.DB
	ready sync.Map // the quoted names of tables that exist
}

func (t *appTopics) makeMessages(ctx context.Context, topic string) error {
	return t.make(ctx, topic, appSchema.MessagesTable(topic), func() ([]wmsql.Query, error) {
		return appSchema.SchemaInitializingQueries(wmsql.SchemaInitializingQueriesParams{Topic: topic})
	})
}

func (t *appTopics) makeOffsets(ctx context.Context, topic string) error {
	return t.make(ctx, topic, appOffsets.MessagesOffsetsTable(topic), func() ([]wmsql.Query, error) {
		return appOffsets.SchemaInitializingQueries(wmsql.OffsetsSchemaInitializingQueriesParams{Topic: topic})
	})
}

func (t *appTopics) make(
	ctx context.Context, topic, table string, statements func() ([]wmsql.Query, error),
) error {
	if _, ready := t.ready.Load(table); ready {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	there, err := exists(ctx, t.db, table)
	if err != nil {
		return fmt.Errorf("cannot look for the table of topic %q: %w", topic, err)
	}
	if !there {
		queries, err := statements()
		var all []string
		for _, query := range queries {
			all = append(all, query.Query)
		}
		if err == nil {
			err = createLocked(ctx, t.db, all...)
		}
		if err != nil {
			return fmt.Errorf("cannot create the table %s of topic %q: %w", table, topic, err)
		}
	}
	t.ready.Store(table, nil)
	return nil
}

// checkInsert returns an error with a GRANT for each right that the role lacks to publish to a table.
func (t *appTopics) checkInsert(ctx context.Context, table string) error {
	var sequence sql.NullString // none: the column has no sequence of its own
	if err := t.db.QueryRowContext(ctx, `SELECT pg_get_serial_sequence($1::text, 'offset')`, table).
		Scan(&sequence); err != nil {
		return fmt.Errorf("cannot look for the sequence of %s: %w", table, err)
	}
	needed := []right{{"TABLE", table, "INSERT"}}
	if sequence.Valid {
		needed = append(needed, right{"SEQUENCE", sequence.String, "USAGE"})
	}
	return checkRights(ctx, t.db, needed)
}

package backends

import (
	"context"
	stdsql "database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/tieredretry/watermill-retry/letters/relayletters"
)

// postgresLetters reads the tables of dead-letter topics. A position is "<transaction>/<offset>": that is the primary
// key of the tables with consumer groups. Queue tables have no column for the transaction, and their positions have 0
// there.
type postgresLetters struct {
	db    *stdsql.DB
	queue bool // the tables are queues: rows that are acknowledged are marked or deleted
}

func (postgresLetters) table(topic string) string {
	return pgx.Identifier{"watermill_" + topic}.Sanitize()
}

// rows selects the letters of a topic. position is the expression of their positions.
func (p postgresLetters) rows(topic string) (position, from string) {
	if p.queue {
		return `'0/' || "offset"`, p.table(topic) + " WHERE NOT acked"
	}
	return `transaction_id || '/' || "offset"`, p.table(topic) + " WHERE true"
}

// order is the columns of the key, which are in its index.
func (p postgresLetters) order(direction string) string {
	if p.queue {
		return ` ORDER BY "offset" ` + direction
	}
	return ` ORDER BY transaction_id ` + direction + `, "offset" ` + direction
}

// compare compares the key of a row with a position.
func (p postgresLetters) compare(operator, position string) (string, error) {
	var transaction uint64
	var offset int64
	if _, err := fmt.Sscanf(position, "%d/%d", &transaction, &offset); err != nil {
		return "", fmt.Errorf("the position %q is not <transaction>/<offset>: %w", position, err)
	}
	if p.queue {
		return fmt.Sprintf(` AND "offset" %s %d`, operator, offset), nil
	}
	return fmt.Sprintf(` AND (transaction_id, "offset") %s ('%d'::xid8, %d)`, operator, transaction, offset), nil
}

func (p postgresLetters) exists(ctx context.Context, topic string) (exists bool, err error) {
	return exists, p.db.QueryRowContext(ctx, `SELECT to_regclass($1) IS NOT NULL`, p.table(topic)).Scan(&exists)
}

func (p postgresLetters) End(ctx context.Context, topic string) (relayletters.End, error) {
	exists, err := p.exists(ctx, topic)
	if err != nil {
		return relayletters.End{}, err
	}
	if !exists {
		return relayletters.End{}, errNoQueue(topic)
	}
	var end relayletters.End
	position, from := p.rows(topic)
	last := `SELECT ` + position + ` FROM ` + from + p.order("DESC") + ` LIMIT 1`
	err = p.db.QueryRowContext(ctx, `SELECT count(*), COALESCE((`+last+`), '0/0') FROM `+from).
		Scan(&end.Count, &end.Position)
	return end, err
}

func (p postgresLetters) Read(
	ctx context.Context, topic, after, until string, limit int,
) (found []relayletters.Stored, err error) {
	position, from := p.rows(topic)
	for _, bound := range []struct{ operator, position string }{{">", after}, {"<=", until}} {
		if bound.position == "" {
			continue
		}
		condition, err := p.compare(bound.operator, bound.position)
		if err != nil {
			return nil, err
		}
		from += condition
	}
	rows, err := p.db.QueryContext(ctx,
		`SELECT `+position+`, uuid, payload, metadata FROM `+from+p.order("ASC")+` LIMIT $1`, limit)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var position, uuid string
		var payload, metadata []byte
		if err := rows.Scan(&position, &uuid, &payload, &metadata); err != nil {
			return nil, err
		}
		msg := message.NewMessage(uuid, payload)
		if metadata != nil {
			if err := json.Unmarshal(metadata, &msg.Metadata); err != nil {
				return nil, errUnreadable(topic, position, err)
			}
		}
		found = append(found, stored(position, msg))
	}
	return found, rows.Err()
}

func (p postgresLetters) Remove(ctx context.Context, topic, position string) error {
	condition, err := p.compare("=", position)
	if err == nil {
		_, err = p.db.ExecContext(ctx,
			fmt.Sprintf(`DELETE FROM %s WHERE %s`, p.table(topic), strings.TrimPrefix(condition, " AND ")))
	}
	return err
}

// HasHandler looks for the table: the first subscription makes it.
func (p postgresLetters) HasHandler(ctx context.Context, topic string) (bool, error) {
	return p.exists(ctx, topic)
}

// Lock is an advisory lock of a session of its own. It takes no transaction, because an open one would hide new
// messages from subscribers.
func (p postgresLetters) Lock(ctx context.Context, topic string) (context.Context, func(), error) {
	session, err := p.db.Conn(ctx)
	if err != nil {
		return nil, nil, err
	}
	const key = `(hashtextextended('watermill-retry dead letters ' || $1, 0))`
	var locked bool
	err = session.QueryRowContext(ctx, `SELECT pg_try_advisory_lock`+key, topic).Scan(&locked)
	if err != nil || !locked {
		if err == nil {
			err = errBusy(topic)
		}
		return nil, nil, errors.Join(err, session.Close())
	}
	held, release := hold(ctx, App{}.lease(), session.PingContext, func(ctx context.Context) error {
		_, err := session.ExecContext(ctx, `SELECT pg_advisory_unlock`+key, topic)
		return errors.Join(err, session.Close())
	})
	return held, release, nil
}

func (p postgresLetters) Close() error { return p.db.Close() }

package backends

import (
	"cmp"
	"context"
	stdsql "database/sql"
	"encoding/json"
	"errors"
	"math"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/tieredretry/watermill-retry/letters/relayletters"
)

// postgresLetters reads the queue tables of dead-letter topics. A position is the offset of a row. A row that is
// acknowledged is deleted.
type postgresLetters struct{ db *stdsql.DB }

func (postgresLetters) table(topic string) string {
	return pgx.Identifier{"watermill_" + topic}.Sanitize()
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
	err = p.db.QueryRowContext(ctx,
		`SELECT count(*), COALESCE(max("offset"), 0)::text FROM `+p.table(topic)+` WHERE NOT acked`).
		Scan(&end.Count, &end.Position)
	return end, err
}

func (p postgresLetters) Read(
	ctx context.Context, topic, after, until string, limit int,
) (found []relayletters.Stored, err error) {
	rows, err := p.db.QueryContext(ctx,
		`SELECT "offset"::text AS position, uuid, payload, metadata FROM `+p.table(topic)+
			` WHERE NOT acked AND "offset" > $1::bigint AND "offset" <= $2::bigint ORDER BY "offset" LIMIT $3`,
		cmp.Or(after, "0"), cmp.Or(until, strconv.FormatInt(math.MaxInt64, 10)), limit)
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
	_, err := p.db.ExecContext(ctx, `DELETE FROM `+p.table(topic)+` WHERE "offset" = $1::bigint`, position)
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

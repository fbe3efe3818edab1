package postgresretry

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/pooler"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/relayletters"
)

// Letters returns the store of the dead letters in a table, or an error that reports all faults of DB, Prefix, Table
// and Lease. The other fields are not used. It does not connect. A nil logger logs nothing.
//
// Its queues are dead-letter topics: "<Prefix>.dead.<Group>.<topic>". A letter is there until it is redriven or
// discarded. Two calls at the same time that change one topic are refused, by an advisory lock, for which a call keeps
// a transaction, and a connection of DB. The Store's Close leaves DB open.
func Letters(config Config, logger watermill.LoggerAdapter) (letters.Store, error) {
	config.setDefaults()
	if err := config.validateStore(); err != nil {
		return nil, faults.Of("invalid postgresretry.Config", err)
	}
	publisher, err := newPublisher(config, logger)
	if err != nil {
		return nil, err
	}
	return relayletters.Open(relayletters.Config{
		Publisher: publisher,
		Reader:    &reader{db: config.DB, table: newTable(config.Table), names: publisher.names},
		Prefix:    config.Prefix,
	})
}

// reader is the relayletters.Reader of a table. A position is the id of a row.
type reader struct {
	db    *sql.DB
	table table
	names relaytopic.Names
	fit   atomic.Bool // the driver fits what is between it and the server
}

// check refuses a driver that a pooler does not fit.
func (r *reader) check(ctx context.Context) error {
	if r.fit.Load() {
		return nil
	}
	err := pooler.CheckDB(ctx, r.db)
	r.fit.Store(err == nil)
	return err
}

// End implements relayletters.Reader. A topic exists where it has letters, or a handler that they would be of.
func (r *reader) End(ctx context.Context, topic string) (end relayletters.End, err error) {
	if err := r.check(ctx); err != nil {
		return end, err
	}
	there, err := exists(ctx, r.db, r.table.name)
	if err == nil && there {
		err = r.db.QueryRowContext(ctx, `SELECT count(*), COALESCE(max(id), 0)::text FROM `+r.table.name+
			` WHERE topic = $1::text AND due = `+never, topic).Scan(&end.Count, &end.Position)
	}
	if err != nil || end.Count > 0 {
		return end, err
	}
	if there {
		there, err = r.HasHandler(ctx, r.names.ReturnOf(topic))
	}
	if err == nil && !there {
		err = fmt.Errorf("topic %q: %w", topic, letters.ErrNoQueue)
	}
	return end, err
}

// Read implements relayletters.Reader.
func (r *reader) Read(
	ctx context.Context, topic, after, until string, limit int,
) (found []relayletters.Stored, err error) {
	rows, err := r.db.QueryContext(ctx, `SELECT id::text AS position, uuid, payload, metadata::text FROM `+r.table.name+
		` WHERE topic = $1::text AND due = `+never+` AND id > $2::bigint AND id <= $3::bigint ORDER BY id LIMIT $4::int`,
		topic, cmp.Or(after, "0"), cmp.Or(until, strconv.FormatInt(math.MaxInt64, 10)), limit)
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
		msg.Metadata = decodeMetadata(metadata)
		found = append(found, relayletters.Stored{Position: position, Message: msg})
	}
	return found, rows.Err()
}

// Remove implements relayletters.Reader.
func (r *reader) Remove(ctx context.Context, topic, position string) error {
	_, err := r.db.ExecContext(ctx, `DELETE FROM `+r.table.name+
		` WHERE id = $1::bigint AND topic = $2::text AND due = `+never, position, topic)
	return err
}

// HasHandler implements relayletters.Reader. An app's topic has one where a consumer group has an offset.
func (r *reader) HasHandler(ctx context.Context, topic string) (has bool, err error) {
	if !r.names.IsReturn(topic) {
		if topic == "" || checkTopic(topic, true) != nil {
			return false, nil
		}
		return exists(ctx, r.db, appOffsets.MessagesOffsetsTable(topic))
	}
	err = r.db.QueryRowContext(ctx,
		`SELECT EXISTS (SELECT FROM `+r.table.handlers()+` WHERE topic = $1::text)`, topic).Scan(&has)
	return has, err
}

// Lock implements relayletters.Reader.
func (r *reader) Lock(ctx context.Context, topic string) (context.Context, func(), error) {
	if err := r.check(ctx); err != nil {
		return nil, nil, err
	}
	return r.lock(ctx, topic)
}

// Close implements relayletters.Reader. The database is the app's.
func (*reader) Close() error { return nil }

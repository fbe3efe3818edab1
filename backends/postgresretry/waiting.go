package postgresretry

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/inflight"
)

// waiting is the table of messages that wait and are in flight, and of dead letters. A message waits until its due
// time. Taking it moves the due time to the end of its lease, so it becomes due again where its process dies.
//
// All due times are set and compared by the clock of the server.
type waiting struct {
	db    *sql.DB
	table table
	lease time.Duration

	settings, putQuery, putAllQuery, takeQuery, dueQuery, ackQuery, renewQuery, giveBackQuery string

	floors floors // the floors that only takes use
	puts   combiner[row]
	takes  combiner[*ask]
	acks   combiner[[]held]

	changing chan struct{} // has one for each statement of change
	isolated atomic.Bool   // transactions are not READ COMMITTED by default
}

// leastInterval is the time to the next take of a topic that had less than was asked for: what is due one by one then
// comes together.
const leastInterval = 5 * time.Millisecond

// row is a message to store.
type row struct {
	topic, uuid, metadata string
	wait                  int64 // microseconds; -1: a dead letter
	payload               []byte
}

// size is about that of its text in a statement for several rows, which has the payload in hexadecimal.
func (r row) size() int { return len(r.topic) + len(r.uuid) + len(r.metadata) + 2*len(r.payload) }

// later is a due time in so many microseconds.
const later = `clock_timestamp() + $%d::bigint * interval '1 microsecond'`

// newWaiting composes the statements. They take arrays as text, because not every driver has arrays. The index is used
// for a condition with statement_timestamp(), and not for one with clock_timestamp(), which changes.
func newWaiting(db *sql.DB, t table, lease time.Duration) *waiting {
	const put = ` (topic, due, uuid, payload, metadata)
		SELECT topic, CASE WHEN wait < 0 THEN ` + never + ` ELSE clock_timestamp() + wait * interval '1 microsecond' END,
			uuid, payload, metadata::json
		FROM `
	leased := `UPDATE ` + t.name + ` t SET due = %s WHERE t.id = ANY($1::bigint[]) AND t.due < ` + never + ` AND EXISTS (
			SELECT FROM unnest($1::bigint[], $2::int[]) AS mine(id, takes) WHERE mine.id = t.id AND mine.takes = t.takes)
		RETURNING t.id`
	w := &waiting{
		db: db, table: t, lease: lease,
		settings: fmt.Sprintf(settings, min(lease.Milliseconds(), math.MaxInt32)),
		putQuery: `INSERT INTO ` + t.name + put + `(VALUES ($1::text, $2::bigint, $3::text, $4::bytea, $5::text))
			AS r(topic, wait, uuid, payload, metadata)`,
		putAllQuery: `INSERT INTO ` + t.name + put + `unnest($1::text[], $2::bigint[], $3::text[], $4::bytea[], $5::text[])
			AS r(topic, wait, uuid, payload, metadata)`,
		takeQuery: `SELECT id, takes, topic, uuid, payload, metadata, number
			FROM ` + t.start + `_take"($1::text[], $2::int[], $3::bigint[], $4::bigint)`,
		dueQuery: `SELECT want.topic,
			(extract(epoch FROM least(greatest(first.due, to_timestamp(0)) - statement_timestamp(), '100 years'))
				* 1000000)::bigint
			FROM unnest($1::text[]) AS want(topic) CROSS JOIN LATERAL (
				SELECT t.due FROM ` + t.name + ` t WHERE t.topic = want.topic AND t.due < ` + never + `
				ORDER BY t.due LIMIT 1) first`,
		ackQuery:      `SELECT ` + t.start + `_ack"($1::bigint[], $2::text[])`,
		renewQuery:    fmt.Sprintf(leased, fmt.Sprintf(later, 3)),
		giveBackQuery: fmt.Sprintf(leased, `clock_timestamp()`),
		floors:        floors{},
		changing:      make(chan struct{}, 2),
	}
	w.puts = combiner[row]{run: w.insert, most: 64, parallel: 2, size: row.size}
	w.acks = combiner[[]held]{run: w.remove, most: 64, parallel: 2}
	w.takes = combiner[*ask]{run: w.takeAll, most: 64, parallel: 1}
	return w
}

// put stores a message of a return topic, and returns the delay after which it is due.
func (w *waiting) put(ctx context.Context, topic string, msg *message.Message) (time.Duration, error) {
	wait := delayOf(msg)
	return wait, w.store(ctx, topic, msg, microseconds(wait))
}

// putDead stores a dead letter.
func (w *waiting) putDead(ctx context.Context, topic string, msg *message.Message) error {
	return w.store(ctx, topic, msg, -1)
}

func (w *waiting) store(ctx context.Context, topic string, msg *message.Message, wait int64) error {
	metadata, err := encodeMetadata(msg.Metadata)
	if err != nil {
		return err
	}
	return w.puts.do(ctx, row{topic, msg.UUID, metadata, wait, payload(msg)})
}

func (w *waiting) insert(ctx context.Context, rows []row) error {
	if len(rows) == 1 {
		r := rows[0]
		_, err := w.db.ExecContext(ctx, w.putQuery, r.topic, r.wait, r.uuid, r.payload, r.metadata)
		return err
	}
	var topics, waits, uuids, payloads, metadata array
	for _, r := range rows {
		topics.addText(r.topic)
		waits.add(r.wait)
		uuids.addText(r.uuid)
		payloads.addText(`\x` + hex.EncodeToString(r.payload))
		metadata.addText(r.metadata)
	}
	_, err := w.db.ExecContext(ctx, w.putAllQuery, topics.String(), waits.String(), uuids.String(), payloads.String(),
		metadata.String())
	return err
}

// payload is not nil: that would be NULL.
func payload(msg *message.Message) []byte {
	if msg.Payload == nil {
		return []byte{}
	}
	return msg.Payload
}

// delayOf returns how long a message is to wait. One without a readable delay is due at once.
func delayOf(msg *message.Message) time.Duration {
	wait, err := time.ParseDuration(msg.Metadata[delay.DelayedForKey])
	if err != nil {
		return 0
	}
	return max(wait, 0)
}

// microseconds is rounded up.
func microseconds(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }

// settings of the other transactions that take and settle messages: those of the functions, see schema. Where a process
// is stopped before a commit, the server ends the transaction after a lease (%d, in milliseconds): its locks would keep
// the messages from other processes, and watermill-sql reads nothing behind an open transaction.
const settings = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
	set_config('plan_cache_mode', 'force_generic_plan', true), set_config('synchronous_commit', 'off', true),
	set_config('idle_in_transaction_session_timeout', '%d', true)`

// transact executes one statement with these settings.
func (w *waiting) transact(ctx context.Context, statement func(*sql.Tx) error) error {
	tx, err := w.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, w.settings)
	if err == nil {
		err = statement(tx)
	}
	if err != nil {
		return errors.Join(err, ignoreDone(tx.Rollback()))
	}
	return tx.Commit()
}

// query executes a query in a transaction of its own, and scans its rows.
func (w *waiting) query(ctx context.Context, query string, args []any, scan func(*sql.Rows) error) error {
	return w.transact(ctx, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, query, args...)
		return each(rows, err, scan)
	})
}

// call calls a function, which has the settings.
func (w *waiting) call(ctx context.Context, query string, args []any, scan func(*sql.Rows) error) error {
	if w.isolated.Load() { // the functions need READ COMMITTED
		return w.query(ctx, query, args, scan)
	}
	rows, err := w.db.QueryContext(ctx, query, args...)
	return each(rows, err, scan)
}

// each scans rows.
func each(rows *sql.Rows, err error, scan func(*sql.Rows) error) error {
	if err != nil {
		return err
	}
	for err == nil && rows.Next() {
		err = scan(rows)
	}
	return errors.Join(err, rows.Err(), rows.Close())
}

// lookAtIsolation notes whether the default of the database is another than READ COMMITTED.
func (w *waiting) lookAtIsolation(ctx context.Context) error {
	var level string
	err := w.transact(ctx, func(tx *sql.Tx) error { // not every pooler lets a client have one
		return tx.QueryRowContext(ctx, `SHOW default_transaction_isolation`).Scan(&level)
	})
	if err != nil {
		return fmt.Errorf("cannot read default_transaction_isolation: %w", err)
	}
	w.isolated.Store(level != "read committed")
	return nil
}

// ask is one call of take, and its answer.
type ask struct {
	topic string
	n     int

	taken []*inflight.Taken
	next  time.Duration // the time until the next message is due, where taken is empty; negative: none is known
}

// take leases at most n messages of a return topic, and returns the time until the next one is due: negative, if none
// is known. The readers of a process take with one statement.
func (w *waiting) take(topic string, n int) ([]*inflight.Taken, time.Duration, error) {
	one := &ask{topic: topic, n: n}
	err := w.takes.do(context.Background(), one) // each statement has a timeout
	return one.taken, one.next, err
}

// takeAll takes for all that ask. Several readers can have one topic.
func (w *waiting) takeAll(ctx context.Context, asks []*ask) error {
	wanted, found := map[string]int{}, map[string]ask{}
	for _, one := range asks {
		wanted[one.topic] += one.n
	}
	var topics, rooms, floors array
	began := time.Now()
	for topic, n := range wanted {
		topics.addText(topic)
		rooms.add(int64(n))
		floors.add(w.floors.get(topic, began))
	}
	args := []any{topics.String(), rooms.String(), floors.String(), microseconds(w.lease)}
	err := w.call(ctx, w.takeQuery, args, func(rows *sql.Rows) error { return w.scan(rows, found) })
	if err != nil { // nothing is taken, or its leases end
		return err
	}
	for _, one := range asks {
		of := found[one.topic]
		n := min(one.n, len(of.taken))
		one.taken, one.next = of.taken[:n:n], of.next
		of.taken = of.taken[n:]
		found[one.topic] = of
	}
	return nil
}

// lookAtDues adds the time until the next message of each topic is due.
func (w *waiting) lookAtDues(ctx context.Context, returns []string, found map[string]time.Duration) error {
	if len(returns) == 0 {
		return nil
	}
	var topics array
	for _, topic := range returns {
		topics.addText(topic)
	}
	return w.query(ctx, w.dueQuery, []any{topics.String()}, func(rows *sql.Rows) error {
		var topic string
		var in int64
		err := rows.Scan(&topic, &in)
		found[topic] = time.Duration(in) * time.Microsecond
		return err
	})
}

// scan reads a row of what takeQuery returns.
func (w *waiting) scan(rows *sql.Rows, found map[string]ask) error {
	var id, takes, number int64
	var topic, uuid string
	var payload, metadata []byte
	if err := rows.Scan(&id, &takes, &topic, &uuid, &payload, &metadata, &number); err != nil {
		return err
	}
	of := found[topic]
	if id == 0 {
		of.next = time.Duration(number) * time.Microsecond
	} else {
		w.floors.taken(topic, number)
		of.next = leastInterval
		of.taken = append(of.taken, newTaken(id, takes, uuid, payload, metadata))
	}
	found[topic] = of
	return nil
}

// held is a row that a reader has taken, and the Handle of its message: it is ours while nothing else has taken it.
type held struct {
	id, takes int64
	uuid      string
}

func newTaken(id, takes int64, uuid string, payload, metadata []byte) *inflight.Taken {
	msg := message.NewMessage(uuid, payload)
	msg.Metadata = decodeMetadata(metadata)
	return &inflight.Taken{Message: msg, ID: strconv.FormatInt(id, 10), Handle: held{id, takes, uuid}}
}

func (w *waiting) ack(ctx context.Context, taken []*inflight.Taken) error {
	acked := make([]held, len(taken))
	for i, one := range taken {
		acked[i] = one.Handle.(held)
	}
	return w.acks.do(ctx, acked)
}

// remove deletes rows.
func (w *waiting) remove(ctx context.Context, all [][]held) error {
	var ids, uuids array
	for _, acked := range all {
		for _, one := range acked {
			ids.add(one.id)
			uuids.addText(one.uuid)
		}
	}
	return w.call(ctx, w.ackQuery, []any{ids.String(), uuids.String()}, func(*sql.Rows) error { return nil })
}

// renew returns the messages that have other leases now.
func (w *waiting) renew(ctx context.Context, taken []*inflight.Taken) ([]*inflight.Taken, error) {
	return w.change(ctx, w.renewQuery, taken, microseconds(w.lease))
}

// giveBack ends leases.
func (w *waiting) giveBack(ctx context.Context, taken []*inflight.Taken) error {
	_, err := w.change(ctx, w.giveBackQuery, taken)
	return err
}

// change changes the leases of messages, and returns those that it has not found. All readers do that at the same time,
// so only two statements are executed at once: each needs a connection.
func (w *waiting) change(
	ctx context.Context, query string, taken []*inflight.Taken, more ...any,
) (lost []*inflight.Taken, err error) {
	select {
	case w.changing <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-w.changing }()
	var ids, takes array
	for _, one := range taken {
		lease := one.Handle.(held)
		ids.add(lease.id)
		takes.add(lease.takes)
	}
	found := map[int64]bool{}
	err = w.query(ctx, query, append([]any{ids.String(), takes.String()}, more...), func(rows *sql.Rows) error {
		var id int64
		err := rows.Scan(&id)
		found[id] = true
		return err
	})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(taken), func(one *inflight.Taken) bool {
		return found[one.Handle.(held).id]
	}), nil
}

// array is an array in PostgreSQL's text form.
type array struct{ strings.Builder }

func (a *array) next() {
	if a.Len() > 0 {
		a.WriteByte(',')
	}
}

func (a *array) add(n int64) {
	a.next()
	a.WriteString(strconv.FormatInt(n, 10))
}

func (a *array) addText(text string) {
	a.next()
	a.WriteByte('"')
	a.WriteString(strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text))
	a.WriteByte('"')
}

func (a *array) String() string { return "{" + a.Builder.String() + "}" }

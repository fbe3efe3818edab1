package postgresretry

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/inflight"
)

const (
	// lookInterval is how often a process looks for new messages of the app's topics: one of another process comes up to
	// this late.
	lookInterval = 200 * time.Millisecond

	// dueInterval is how often it looks for what other processes have stored or given back on return topics.
	dueInterval = time.Second

	// A topic is read again after a quarter of the time since something was published to it, at least leastPause: the
	// transaction may not have ended yet, and watermill-sql's order lets a message be read only after all transactions
	// that began before it. The pause has a bound for each topic of the process: a process that has died may have left
	// a backlog. It is short for topics whose sequence must not be read.
	leastPause = 50 * time.Millisecond
	mostPause  = time.Second
	blindPause = 100 * time.Millisecond

	// statementTimeout bounds a statement on a server that does not answer.
	statementTimeout = 10 * time.Second
)

// appTopic is a topic of the app, as one consumer group reads it. Taking a message moves it from the group's offset in
// watermill-sql's tables to the table of this package, in one transaction: as a message in flight of the group's return
// topic. So several messages of a topic are in flight, in several processes, no transaction lasts as long as a handler,
// and a message whose process dies comes back on the return topic.
type appTopic struct {
	topic, group, returnTopic string
	messages, offsets         string // quoted names of the tables
	sequence                  string // quoted name of the sequence of the messages; empty: there is none
	moveQuery, aheadQuery     string

	value int64       // the present value of the sequence; only Look reads it
	blind atomic.Bool // the sequence must not be read

	// Of the reader only.
	changed time.Time // when something was published
	locked  int       // reads in a row that another process has kept from the offset
	ahead   string    // the server's next transaction id when ids of the topic were beyond it; empty: they are not
}

// open begins to read a topic: it inserts the group's offset where it has none.
func (s *source) open(ctx context.Context, topic, group, returnTopic string) (*appTopic, error) {
	a := &appTopic{
		topic: topic, group: group, returnTopic: returnTopic,
		messages: appSchema.MessagesTable(topic), offsets: appOffsets.MessagesOffsetsTable(topic),
	}
	var kind string
	err := s.waiting.db.QueryRowContext(ctx, `SELECT format_type(atttypid, NULL),
			COALESCE(pg_get_serial_sequence($1::text, 'offset'), '')
		FROM pg_attribute WHERE attrelid = to_regclass($1::text) AND attname = 'payload'`, a.messages).
		Scan(&kind, &a.sequence)
	if err == nil {
		err = checkRights(ctx, s.waiting.db, []right{
			{"TABLE", a.messages, "SELECT"},
			{"TABLE", a.offsets, "SELECT"}, {"TABLE", a.offsets, "INSERT"}, {"TABLE", a.offsets, "UPDATE"},
		})
	}
	if err == nil {
		_, err = s.waiting.db.ExecContext(ctx, `INSERT INTO `+a.offsets+
			` (consumer_group, offset_acked, last_processed_transaction_id) VALUES ($1::text, 0, '0') ON CONFLICT DO NOTHING`,
			group)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot begin to read topic %q: %w", topic, err)
	}
	payload := `m.payload`
	if kind != "bytea" { // watermill-sql's default is JSON
		payload = `convert_to(m.payload::text, 'UTF8')`
	}
	a.moveQuery = s.waiting.moveQuery(a, payload)
	a.aheadQuery = `SELECT ` + a.isAhead(`o`) + `, o.last_processed_transaction_id < $2::text::xid8
		FROM ` + a.offsets + ` o WHERE consumer_group = $1::text`
	s.mu.Lock()
	defer s.mu.Unlock()
	s.topics[a.name()] = a
	return a, nil
}

// name is that of the topic for the watch, which knows the return topic by its own name.
func (a *appTopic) name() string { return "\x00" + a.returnTopic }

func (w *waiting) moveQuery(a *appTopic, payload string) string {
	return `WITH last AS MATERIALIZED (
			SELECT offset_acked, last_processed_transaction_id FROM ` + a.offsets + `
			WHERE consumer_group = $1::text FOR UPDATE SKIP LOCKED),
		next AS MATERIALIZED (
			SELECT m.* FROM last CROSS JOIN LATERAL (
				SELECT m."offset", m.transaction_id, m.uuid, COALESCE(` + payload + `, ''::bytea) AS payload,
					COALESCE(m.metadata::json, '{}'::json) AS metadata
				FROM ` + a.messages + ` m
				WHERE ` + beyond + `
				ORDER BY m.transaction_id, m."offset" LIMIT $2::int) m),
		moved AS (
			UPDATE ` + a.offsets + ` o SET offset_acked = l."offset", last_processed_transaction_id = l.transaction_id
			FROM (SELECT "offset", transaction_id FROM next ORDER BY transaction_id DESC, "offset" DESC LIMIT 1) l
			WHERE o.consumer_group = $1::text),
		taken AS (
			INSERT INTO ` + w.table.name + ` (topic, due, takes, uuid, payload, metadata)
			SELECT $3::text, ` + fmt.Sprintf(later, 4) + `, 1, uuid, payload, metadata
			FROM next ORDER BY transaction_id, "offset"
			RETURNING id, takes, uuid, payload, metadata)
		SELECT id, takes, uuid, payload, metadata::text FROM taken
		UNION ALL SELECT ` + strconv.Itoa(locked) + `, 0, '', '', '' WHERE NOT EXISTS (SELECT FROM last)
		UNION ALL SELECT ` + strconv.Itoa(beyondServer) + `, 0, ` + serverNext + `::text, '', '' FROM last
			WHERE NOT EXISTS (SELECT FROM next) AND ` + a.isAhead(`last`) + `
		ORDER BY 1`
}

// locked is the id in the answer of moveQuery where another process has locked the group's offset. It is not known then
// whether the topic has messages.
const locked = -1

// beyondServer is the id in the answer of moveQuery where nothing is to be read, and the topic may have transaction ids
// that the server has not given out: the offset is the newest, and the server's next id, the uuid, is as old as the
// statement.
const beyondServer = -2

// serverNext is the next transaction id of the server.
const serverNext = `pg_snapshot_xmax(pg_current_snapshot())`

// isAhead is the condition that an offset, or a message of its topic, has a transaction id of another server.
func (a *appTopic) isAhead(offset string) string {
	return `(` + offset + `.last_processed_transaction_id >= ` + serverNext + `
		OR EXISTS (SELECT FROM ` + a.messages + ` m WHERE m.transaction_id >= ` + serverNext + `))`
}

// mend returns the statement after which a topic of another server is read: messages of its transactions are in the
// order of their offsets, before all new ones. A group goes on at the first message that it may not have read.
func (a *appTopic) mend() string {
	return `WITH positions AS (UPDATE ` + a.offsets + ` o SET last_processed_transaction_id = '0', offset_acked = ` +
		`COALESCE((SELECT min(m."offset") - 1 FROM ` + a.messages + ` m WHERE m."offset" > o.offset_acked OR ` +
		`m.transaction_id > o.last_processed_transaction_id), o.offset_acked)) ` +
		`UPDATE ` + a.messages + ` SET transaction_id = '0'`
}

// lookAhead returns an error while the topic has transaction ids of another server. When this server has given out the
// same ids, the messages that were published until then would be taken for read: only mend ends that. next is the uuid
// of beyondServer, or empty.
func (s *source) lookAhead(ctx context.Context, a *appTopic, next string) error {
	next = cmp.Or(a.ahead, next)
	if next == "" {
		return nil
	}
	var isAhead, isBefore bool // in one snapshot
	if err := s.waiting.db.QueryRowContext(ctx, a.aheadQuery, a.group, next).Scan(&isAhead, &isBefore); err != nil {
		return err
	}
	if isAhead {
		a.ahead = next
	} else if isBefore {
		a.ahead = ""
	}
	if a.ahead == "" {
		return nil
	}
	return fmt.Errorf("the transaction ids of its messages or of group %q are those of another server, as after the "+
		"restore of a dump: this server was at %s. Stop what reads the topic, and execute as the owner of its tables: %s",
		a.group, a.ahead, a.mend())
}

// beyond is the condition of watermill-sql for a message m behind the offset last: its transaction and all before it
// have ended.
const beyond = `(m.transaction_id, m."offset") > (last.last_processed_transaction_id, last.offset_acked)
	AND m.transaction_id < pg_snapshot_xmin(pg_current_snapshot())`

// source is where the readers of a connection get messages from: return topics, and the app's topics.
type source struct {
	waiting *waiting
	watch   *inflight.Watch
	moving  chan struct{} // has one for each statement that moves
	dues    time.Time     // when Look has last read due times; of Look only

	mu      sync.Mutex
	topics  map[string]*appTopic // the topics by their name
	unmoved error                // the error of the statement that has moved last; nil: it did not fail
}

func newSource(w *waiting, logger watermill.LoggerAdapter) *source {
	s := &source{waiting: w, moving: make(chan struct{}, 2), topics: map[string]*appTopic{}}
	s.watch = inflight.NewWatch(context.Background(), s, lookInterval, logger)
	return s
}

// queue returns the queue of a return topic, or of an app's topic.
func (s *source) queue(returnTopic string, a *appTopic) queue {
	name := returnTopic
	if a != nil {
		name = a.name()
	}
	return queue{s, returnTopic, a, s.watch.Alarm(name)}
}

// Look implements inflight.Server. A statement for each of the app's topics would cost the server too much, so it reads
// their sequences.
func (s *source) Look(ctx context.Context, names []string) (map[string]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	var returns []string
	var apps []*appTopic
	s.mu.Lock()
	for _, name := range names {
		if a := s.topics[name]; a != nil {
			apps = append(apps, a)
		} else {
			returns = append(returns, name)
		}
	}
	s.mu.Unlock()
	found := map[string]time.Duration{}
	err := s.lookAtApps(ctx, apps, found)
	if now := time.Now(); now.Sub(s.dues) >= dueInterval {
		s.dues = now
		err = errors.Join(err, s.waiting.lookAtDues(ctx, returns, found))
	}
	return found, err
}

// lookAtApps reads the sequences of topics.
func (s *source) lookAtApps(ctx context.Context, apps []*appTopic, found map[string]time.Duration) (err error) {
	if len(apps) == 0 {
		return nil
	}
	var sequences array
	for _, a := range apps {
		sequences.addText(a.sequence)
	}
	rows, err := s.waiting.db.QueryContext(ctx, `SELECT i - 1, readable,
			COALESCE(CASE WHEN readable THEN pg_sequence_last_value(id) END, 0)
		FROM (SELECT s.i, r.id, COALESCE(has_sequence_privilege(r.id::oid, 'USAGE, SELECT'), false) AS readable
			FROM unnest($1::text[]) WITH ORDINALITY AS s(name, i), to_regclass(NULLIF(s.name, '')) AS r(id)) AS known`,
		sequences.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var i int
		var readable bool
		var value int64
		if err := rows.Scan(&i, &readable, &value); err != nil {
			return err
		}
		a := apps[i]
		a.blind.Store(!readable)
		if value != a.value {
			a.value = value
			found[a.name()] = 0
		}
	}
	return rows.Err()
}

// read takes messages of a topic of the app, and returns the time until it is read again. The context ends only the
// wait for the statements of other topics.
func (s *source) read(
	ctx context.Context, a *appTopic, n int, looked bool,
) ([]*inflight.Taken, time.Duration, error) {
	if err := s.place(ctx); err != nil {
		return nil, 0, err
	}
	within, cancel := context.WithTimeout(context.Background(), statementTimeout)
	taken, free, err := s.move(within, a, n)
	cancel()
	s.leave(err)
	if free {
		a.locked = 0
	}
	if looked || len(taken) > 0 {
		a.changed = time.Now()
	}
	if len(taken) > 0 {
		return taken, leastInterval, err
	}
	if !free && err == nil {
		a.locked++
		return nil, min(leastInterval<<min(a.locked-1, 10), leastPause), nil
	}
	s.mu.Lock()
	topics := len(s.topics)
	s.mu.Unlock()
	return taken, a.pause(time.Since(a.changed), topics), err
}

// place waits until few statements move messages. Its error has that of the statement that has ended last: a server
// that does not answer keeps the places, and that is why a topic cannot be read.
func (s *source) place(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	select {
	case s.moving <- struct{}{}:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Errorf("the statements of other topics have not ended: %w", cmp.Or(s.unmoved, ctx.Err()))
}

func (s *source) leave(err error) {
	s.mu.Lock()
	s.unmoved = err
	s.mu.Unlock()
	<-s.moving
}

// pause returns the time until the topic is read without a reason.
func (a *appTopic) pause(since time.Duration, topics int) time.Duration {
	most := mostPause
	if a.blind.Load() {
		most = blindPause
	}
	return min(max(since/4, leastPause), most*time.Duration(topics))
}

// move reports whether the group's offset was free.
func (s *source) move(ctx context.Context, a *appTopic, n int) (taken []*inflight.Taken, free bool, err error) {
	if err := s.lookAhead(ctx, a, ""); err != nil {
		return nil, true, fmt.Errorf("topic %q: %w", a.topic, err)
	}
	args := []any{a.group, n, a.returnTopic, microseconds(s.waiting.lease)}
	var next string
	free = true
	err = s.waiting.query(ctx, a.moveQuery, args, func(rows *sql.Rows) error {
		var id, takes int64
		var uuid string
		var payload, metadata []byte
		if err := rows.Scan(&id, &takes, &uuid, &payload, &metadata); err != nil {
			return err
		}
		switch id {
		case locked:
			free = false
			return nil
		case beyondServer:
			next = uuid
			return nil
		}
		taken = append(taken, newTaken(id, takes, uuid, payload, metadata))
		return nil
	})
	if err == nil {
		err = s.lookAhead(ctx, a, next)
	}
	if err != nil {
		return nil, false, fmt.Errorf("topic %q: %w", a.topic, err)
	}
	return taken, free, nil
}

// published makes the readers of a topic take what this process has published.
func (s *source) published(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, a := range s.topics {
		if a.topic == topic {
			s.watch.Found(name)
		}
	}
}

package inbox

import (
	"database/sql/driver"
	"errors"
	"slices"

	"github.com/tieredretry/watermill-retry/internal/sqlstate"
)

// waitEnded reports whether the server has ended the statement that waits for another delivery. It may be in work
// still. Pq hides the SQLSTATE of an error that ends the session.
func waitEnded(err error) bool {
	return errors.Is(err, driver.ErrBadConn) || slices.Contains([]string{
		"55P03", // lock_timeout
		"57014", // statement_timeout, pg_cancel_backend
		"40001", // the other delivery has committed: the default isolation is REPEATABLE READ or SERIALIZABLE
		"40P01", // a deadlock
		"25P03", // idle_in_transaction_session_timeout
		"25P04", // transaction_timeout
		"57P01", // pg_terminate_backend, a shutdown
		"57P02", // a crash of another session
		"57P03", // the server starts
		"57P05", // idle_session_timeout
	}, sqlstate.Of(err))
}

// notStorable reports whether no retry can store a row: its text is none in the encoding of the database, or the index
// cannot have it.
func notStorable(err error) bool {
	return slices.Contains([]string{
		"22021", // bytes that are no text
		"22P05", // a character that the encoding of the database does not have
		"54000", // a row that is larger than the index can have
	}, sqlstate.Of(err))
}

// connectionLost reports whether an error can be that of a transaction that the server has ended with its session.
func connectionLost(err error) bool {
	return slices.Contains([]string{"", "25P03", "25P04"}, sqlstate.Of(err))
}

package postgresretry

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/options"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	defaultTable = "retry_messages"
	defaultLease = 15 * time.Second
	minLease     = time.Second

	// maxTable leaves room for the names of the indexes and of the second table: PostgreSQL cuts names at 63 bytes.
	maxTable = 50
)

// Config configures Connect and Letters.
type Config struct {
	// DB is the database, with any driver for PostgreSQL. Required. It stays open: the app closes it, after the
	// connection. No connection of it is kept while a handler runs. A busy process uses about 8: SetMaxOpenConns must be
	// 0, which is no limit, or at least 4.
	DB *sql.DB

	// Group is the name of the service, and the consumer group of the handlers whose Options have none. Required by
	// Connect. Two services with different groups get nothing of each other, with one database and one Prefix.
	Group string

	// Policy decides about failures of all handlers without a policy of their own. Connect requires its Schedule.
	Policy retry.Policy

	// Prefix is the start of the names of return topics and dead-letter topics: at most 40 characters, each a letter, a
	// digit, a dot, an underscore or a hyphen. The default is "retry".
	Prefix string

	// Table is the table of messages that wait or are in flight, and of dead letters. A second table has the same name
	// with "_handlers". It is a name or schema.name: letters, digits and underscores, the name at most 50 bytes. A name
	// must not begin with "watermill_", as the tables of the app's topics do. The default is "retry_messages".
	Table string

	// Lease is how long after the death of a process its messages in flight come again. It is renewed while a handler
	// runs, so a handler may run longer. The default is 15 seconds, the minimum 1 second.
	Lease time.Duration
}

// plainConfig is a Config without its methods.
type plainConfig Config

// Format implements fmt.Formatter. It prints the configuration whatever the verb as %v does: with a wrong verb, fmt
// prints what a pointer leads to, here the password of DB.
func (c Config) Format(state fmt.State, _ rune) {
	_, _ = fmt.Fprintf(state, fmt.FormatString(state, 'v'), plainConfig(c))
}

func (c *Config) setDefaults() {
	c.Prefix = cmp.Or(c.Prefix, "retry")
	c.Table = cmp.Or(c.Table, defaultTable)
	c.Lease = cmp.Or(c.Lease, defaultLease)
}

// Validate reports all faults for Connect in one error. A zero field that has a default is valid.
func (c Config) Validate() error {
	all := []error{c.validateStore()}
	if c.Group == "" {
		all = append(all, errors.New("Group is empty: set the name of the service, which is the consumer group of "+
			"its handlers"))
	}
	all = append(all, faults.In("Policy", options.Relayed(c.Policy)))
	return errors.Join(all...)
}

var tableName = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]*$`)

// validateStore reports the faults for Letters.
func (c Config) validateStore() error {
	c.setDefaults()
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.DB == nil {
		fault("DB is nil: set the database")
	} else if most := c.DB.Stats().MaxOpenConnections; most > 0 && most < 4 {
		fault("DB has at most %d open connections: SetMaxOpenConns must be 0, which is no limit, or at least 4", most)
	}
	if err := (relaytopic.Names{Prefix: c.Prefix}).Validate(); err != nil {
		fault("%w", err)
	}
	name := c.Table[strings.LastIndexByte(c.Table, '.')+1:]
	if !tableName.MatchString(c.Table) || len(name) > maxTable || strings.HasPrefix(name, "watermill_") {
		fault("Table is %q: it must be a name, or a schema and a name with a dot between them, of letters, digits and "+
			"underscores; the name has at most %d bytes and does not begin with \"watermill_\"", c.Table, maxTable)
	}
	if c.Lease < minLease {
		fault("Lease is %v: it must be 0 (the default, %v) or at least %v", c.Lease, defaultLease, minLease)
	}
	return errors.Join(faults...)
}

package inbox

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// Config is that of package inbox, which documents it.
type Config struct {
	Table       string
	CreateTable bool
	Retention   time.Duration
	Wait        time.Duration
}

const (
	defaultTable     = "watermill_inbox"
	defaultRetention = 7 * 24 * time.Hour
	defaultWait      = 10 * time.Second

	// leastRetention is longer than the time between two deletions.
	leastRetention = 2 * sweepInterval
	maxTable       = 50 // an identifier of PostgreSQL has 63 bytes, and the name of the index is longer
)

var tableName = regexp.MustCompile(`^([a-z_][a-z0-9_]*\.)?[a-z_][a-z0-9_]*$`)

// Validate reports all faults, joined.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("Config."+format, args...)) }
	if c.Table != "" && (!tableName.MatchString(c.Table) || len(c.Table) > maxTable) {
		fault("Table is %q: it must be a name of a-z, 0-9 and underscores that does not begin with a digit, or such a "+
			"schema, a dot and such a name, with at most %d bytes", c.Table, maxTable)
	}
	if c.Retention < 0 || c.Retention > 0 && c.Retention < leastRetention {
		fault("Retention is %v: it must be at least %v, and longer than a message takes with all its retries and "+
			"redrives, or 0 (the default, %v)", c.Retention, leastRetention, defaultRetention)
	}
	if c.Wait < 0 {
		fault("Wait is %v: it must not be negative (0 is the default, %v)", c.Wait, defaultWait)
	}
	return errors.Join(faults...)
}

func (c Config) withDefaults() Config {
	c.Table = cmp.Or(c.Table, defaultTable)
	c.Retention, c.Wait = cmp.Or(c.Retention, defaultRetention), cmp.Or(c.Wait, defaultWait)
	return c
}

// Package sqlstate reads the SQLSTATE of an error.
package sqlstate

import "errors"

// Of returns the SQLSTATE of an error of PostgreSQL, as pgx and pq have it; empty: there is none.
func Of(err error) string {
	var stated interface{ SQLState() string }
	if errors.As(err, &stated) {
		return stated.SQLState()
	}
	return ""
}

package postgresretry

import (
	"context"
	"database/sql"
	"fmt"
)

// right is what the app's role needs.
type right struct {
	kind   string // TABLE, SEQUENCE or FUNCTION
	object string // its name, quoted; with its arguments, if it is a function
	name   string
}

// checkRights returns an error with a GRANT for each right that the role of the database lacks. What does not exist
// lacks none.
func checkRights(ctx context.Context, db *sql.DB, needed []right) error {
	var kinds, objects, names array
	for _, r := range needed {
		kinds.addText(r.kind)
		objects.addText(r.object)
		names.addText(r.name)
	}
	var role, grants string
	err := db.QueryRowContext(ctx, `SELECT current_user, COALESCE(string_agg(
			format('GRANT %s ON %s %s TO %I', string_agg, kind, object, current_user), '; '), '')
		FROM (SELECT kind, object, string_agg(name, ', ' ORDER BY i)
			FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS n(kind, object, name, i)
			WHERE NOT CASE kind
				WHEN 'TABLE' THEN has_table_privilege(to_regclass(object)::oid, name)
				WHEN 'SEQUENCE' THEN has_sequence_privilege(to_regclass(object)::oid, name)
				ELSE has_function_privilege(to_regprocedure(object)::oid, name) END
			GROUP BY kind, object ORDER BY min(i)) AS lacking`,
		kinds.String(), objects.String(), names.String()).Scan(&role, &grants)
	if err != nil {
		return fmt.Errorf("cannot read the rights of the database's role: %w", err)
	}
	if grants == "" {
		return nil
	}
	return fmt.Errorf("the role %q lacks rights: execute as the owner of the tables and functions: %s", role, grants)
}

package pooler

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// several is a session of a driver that sends a statement in several round trips. Its server has one session for it.
type several struct{}

func (several) Scan(_ context.Context, _, _ string, into ...any) error {
	*into[0].(*int), *into[1].(*bool), *into[2].(*string) = 1, false, ""
	return nil
}

func (several) Close() {}

// Where the app uses the other connections of its pool, the time of the caller is not spent on the check.
func TestCheckLeavesTimeWhereThePoolHasNoSecondSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		opened := 0
		require.NoError(t, Check(ctx, false, func(ctx context.Context) (Session, error) {
			if opened++; opened == 2 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return several{}, nil
		}))
		require.NoError(t, ctx.Err())
		require.Equal(t, 2, opened)
	})
}

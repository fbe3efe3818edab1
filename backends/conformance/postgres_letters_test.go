package conformance

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/postgresretry"
	"github.com/tieredretry/watermill-retry/letters"
)

func browse(t *testing.T, store letters.Store, topic string) (all []*letters.Letter) {
	t.Helper()
	for letter, err := range store.Browse(t.Context(), topic, letters.Filter{}) {
		if !assert.NoError(t, err) {
			return nil
		}
		all = append(all, letter)
	}
	return all
}

func (p onPostgres) store(config postgresretry.Config) letters.Store {
	p.t.Helper()
	store, err := postgresretry.Letters(config, nil)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { require.NoError(p.t, store.Close()) })
	return store
}

func lettersOf(all []*letters.Letter) (ids []string) {
	for _, letter := range all {
		ids = append(ids, letter.ID)
	}
	return ids
}

// Letters are read in the order in which they were written, each once, in more than one batch. A topic without a handler
// has no queue of them.
func TestPostgresLettersInOrder(t *testing.T) {
	p := startPostgres(t)
	store := p.store(p.config())
	_, err := store.Redrive(t.Context(), deadOrders, letters.Redrive{})
	require.ErrorIs(t, err, letters.ErrNoQueue, "there is no table")
	app := p.connect(p.config()).bills(nothing)
	_, err = store.Redrive(t.Context(), "retry.dead.billing.mails", letters.Redrive{})
	require.ErrorIs(t, err, letters.ErrNoQueue, "no handler has subscribed")
	_, err = store.Redrive(t.Context(), deadOrders, letters.Redrive{})
	require.NoError(t, err, "it is empty")
	app.publishTo(deadOrders, ids(120)...)
	assert.Equal(t, ids(120), lettersOf(browse(t, store, deadOrders)))
}

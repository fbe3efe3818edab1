package gate_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/gate"
)

// changed reports whether the channel receives.
func changed(channel <-chan struct{}) bool {
	select {
	case <-channel:
		return true
	default:
		return false
	}
}

func TestPlacesUnderALimitAndOfAll(t *testing.T) {
	p := gate.NewPlaces(3)
	var first, second, third, fourth gate.Place
	require.True(t, p.Take(&first))
	p.Set(1)
	assert.False(t, p.Take(&second), "under the limit")
	p.Set(0)
	p.Set(2)
	assert.Zero(t, p.Taken(), "what was in flight at the pause counts no more")
	require.True(t, p.Take(&second))
	require.True(t, p.Take(&third))
	p.Set(gate.None)
	assert.False(t, p.Take(&fourth), "of all")
	assert.Equal(t, 2, p.Taken())
	first.Leave()
	assert.Equal(t, 2, p.Taken())
	assert.True(t, p.Take(&fourth))
}

func TestAPlaceIsGivenBackOnce(t *testing.T) {
	p := gate.NewPlaces(2)
	var never, first, second gate.Place
	never.Leave()
	require.True(t, p.Take(&first))
	first.SetAside()
	first.SetAside()
	first.Leave()
	assert.Zero(t, p.Taken())
	assert.Equal(t, 1, p.Aside())
	require.True(t, p.Take(&first), "again")
	require.True(t, p.Take(&second))
	first.Leave()
	assert.Equal(t, 1, p.Taken())
}

func TestPlacesReportChanges(t *testing.T) {
	p := gate.NewPlaces(2)
	var first, second gate.Place
	before := p.Changed()
	require.True(t, p.Take(&first))
	first.Leave()
	assert.False(t, changed(before), "there was a free place before")
	require.True(t, p.Take(&first))
	require.True(t, p.Take(&second))
	first.Leave()
	assert.True(t, changed(before), "there was none")
	for name, change := range map[string]func(){
		"the limit": func() { p.Set(1) }, "a message is set aside": second.SetAside,
	} {
		before = p.Changed()
		change()
		assert.True(t, changed(before), name)
	}
}

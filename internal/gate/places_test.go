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
	p := gate.NewPlaces(3, 3)
	var first, second, third, fourth gate.Place
	require.True(t, p.Take(&first))
	p.Set(1)
	assert.True(t, first.Fits())
	assert.False(t, p.Take(&second), "under the limit")
	p.Set(0)
	assert.False(t, first.Fits(), "a message that was offered before a pause counts no more")
	p.Set(2)
	assert.False(t, first.Fits(), "it is not among the two")
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
	p := gate.NewPlaces(2, 2)
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

func TestACallEndsBeforeItsMessageLeaves(t *testing.T) {
	p := gate.NewPlaces(2, 3)
	var first, second, third, fourth gate.Place
	require.True(t, p.Take(&first))
	require.True(t, p.Take(&second))
	require.False(t, p.Take(&third), "two calls")
	first.EndCall()
	first.EndCall()
	assert.True(t, changed(p.Changed()), "there was no free place")
	assert.Equal(t, 1, p.Calls(), "the place is given back once")
	require.True(t, p.Take(&third))
	assert.True(t, third.Fits())
	second.EndCall()
	assert.False(t, p.Take(&fourth), "three messages that have not left")
	first.Leave()
	assert.True(t, changed(p.Changed()), "there was none")
	assert.Equal(t, 1, p.Calls(), "the call of the first one has ended before")
	require.True(t, p.Take(&fourth))
	second.SetAside()
	third.Leave()
	fourth.Leave()
	assert.Zero(t, p.Calls())
	assert.Zero(t, p.Taken())
	require.True(t, p.Take(&first), "again")
	require.True(t, p.Take(&second))
	assert.False(t, p.Take(&third), "a place that is taken again is that of a call")
}

func TestAMessageKeepsItsPlaceAfterItsCall(t *testing.T) {
	for name, row := range map[string]struct {
		calls, messages, limit int
		before                 func(*gate.Place)
		ends                   bool
	}{
		"no limit":                         {calls: 3, messages: 6, limit: gate.None, ends: true},
		"a limit that bounds nothing":      {calls: 3, messages: 6, limit: 3, ends: true},
		"a limit":                          {calls: 3, messages: 6, limit: 2},
		"a pause":                          {calls: 3, messages: 6, limit: 0},
		"as many messages as calls":        {calls: 3, messages: 3, limit: gate.None},
		"no bound":                         {limit: gate.None},
		"a message that has left":          {calls: 3, messages: 6, limit: gate.None, before: (*gate.Place).Leave},
		"a message that was set aside":     {calls: 3, messages: 6, limit: gate.None, before: (*gate.Place).SetAside},
		"a call that has ended before one": {calls: 3, messages: 6, limit: gate.None, before: (*gate.Place).EndCall},
	} {
		t.Run(name, func(t *testing.T) {
			p := gate.NewPlaces(row.calls, row.messages)
			var first, second gate.Place
			first.EndCall() // not taken
			require.True(t, p.Take(&first))
			require.True(t, p.Take(&second))
			if row.before != nil {
				row.before(&first)
			}
			p.Set(row.limit)
			before := p.Calls()
			first.EndCall()
			assert.Equal(t, row.ends, p.Calls() == before-1)
		})
	}
}

func TestPlacesReportChanges(t *testing.T) {
	p := gate.NewPlaces(2, 2)
	var first, second gate.Place
	before := p.Changed()
	require.True(t, p.Take(&first))
	first.Leave()
	assert.False(t, changed(before), "there was a free place before")
	require.True(t, p.Take(&first))
	require.True(t, p.Take(&second))
	first.Leave()
	assert.True(t, changed(before), "there was none")
	p.Set(1)
	assert.True(t, changed(before), "the limit")
	second.SetAside()
	assert.True(t, changed(p.SetsAside()))
}

package observe

import (
	"cmp"
	"slices"
)

// labels are the values of the labels of a metric, in their order. The rest is empty.
type labels [3]string

// A merge makes one value of two that have the same labels.
type merge func(a, b float64) float64

func sum(a, b float64) float64      { return a + b }
func largest(a, b float64) float64  { return max(a, b) }
func smallest(a, b float64) float64 { return min(a, b) }

// A reading is a metric that is read at a collection.
type reading struct {
	Metric
	within merge // values of one Connection
	across merge // values of several Connections
}

// readings returns the metrics that are read at a collection. Health has the same holding and pauses for all subscriptions of a handler.
// Several Connections may ask the same broker what waits.
func readings() []reading {
	return []reading{
		{inFlight, sum, sum}, {holding, largest, sum}, {paused, largest, largest}, {concurrency, sum, sum}, {consuming, smallest, smallest},
		{connected, smallest, smallest}, {blocked, largest, largest}, {reconnects, sum, sum},
		{deliveries, sum, sum}, {redeliveries, sum, sum}, {consumerRestarts, sum, sum},
		{waiting, sum, largest}, {waitingOldest, largest, largest}, {waitingDue, smallest, smallest}, {waitingAge, largest, largest},
		{overdue, sum, largest},
	}
}

// figures are the values of a collection, by the name of the metric.
type figures struct {
	most int
	all  map[string]map[labels]float64
}

func newFigures(most int) figures { return figures{most, map[string]map[labels]float64{}} }

// add adds a value. Beyond most series it goes to that of "other".
func (f figures) add(m Metric, combine merge, value float64, of labels) {
	series := f.all[m.Name]
	if series == nil {
		series = map[labels]float64{}
		f.all[m.Name] = series
	}
	before, found := series[of]
	if !found && len(series) >= f.most {
		of = beyond(m, of)
		before, found = series[of]
	}
	if found {
		value = combine(before, value)
	}
	series[of] = value
}

// beyond returns the labels of the series for those beyond Config.MaxSeries: what the library itself names stays.
func beyond(m Metric, of labels) labels {
	for i, name := range m.Labels {
		switch {
		case of[i] == "":
		case name == labelTopic, name == labelHandler, name == labelQueue, name == labelTier:
			of[i] = other
		}
	}
	return of
}

// totals are counters that never fall, although what they are read from ends and begins again at 0.
type totals struct {
	most int
	all  map[string]map[labels]*total
}

type total struct {
	value float64
	last  []float64 // of those that have not ended
	next  []float64
}

func newTotals(most int) totals { return totals{most, map[string]map[labels]*total{}} }

// see takes the value of one that has not ended. Values of several with the same labels are taken one after the other.
func (t totals) see(m Metric, value float64, of labels) {
	series := t.all[m.Name]
	if series == nil {
		series = map[labels]*total{}
		t.all[m.Name] = series
	}
	if series[of] == nil && len(series) >= t.most {
		of = beyond(m, of)
	}
	if series[of] == nil {
		series[of] = &total{}
	}
	series[of].next = append(series[of].next, value)
}

// done ends a collection: what see has not got has ended.
func (t totals) done() {
	for _, series := range t.all {
		for _, one := range series {
			one.grow()
		}
	}
}

// grow adds what is new. A value goes on from the largest last one that is not above it: so the total is never too large. What
// remains has ended, and stays in the total.
func (t *total) grow() {
	descending := func(a, b float64) int { return cmp.Compare(b, a) }
	slices.SortFunc(t.next, descending)
	for _, value := range t.next {
		t.value += value
		if i := slices.IndexFunc(t.last, func(last float64) bool { return last <= value }); i >= 0 {
			t.value -= t.last[i]
			t.last = slices.Delete(t.last, i, i+1)
		}
	}
	t.last, t.next = t.next, t.last[:0]
}

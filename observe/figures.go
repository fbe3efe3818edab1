package observe

import (
	"cmp"
	"iter"
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
	across merge // values of several Connections
}

// readings returns the metrics that are read at a collection. Several Connections may ask the same broker what waits.
func readings() []reading {
	return []reading{
		{inFlight, sum}, {holding, sum}, {paused, largest}, {concurrency, sum}, {consuming, smallest},
		{connected, smallest}, {blocked, largest}, {reconnects, sum}, {deliveries, sum}, {redeliveries,
			sum}, {consumerRestarts, sum},
		{waiting, largest}, {waitingDue, smallest}, {waitingAge, largest}, {overdue, largest},
	}
}

// figures are the values of a collection, by the name of the metric.
type figures struct {
	most int
	all  map[string]*values
}

// values are those of one metric. Their order is that of a collection, so that the same ones are beyond most at each.
type values struct {
	order []labels
	of    map[labels]float64
}

func newFigures(most int) figures { return figures{most, map[string]*values{}} }

// each returns the values of a metric, in their order.
func (f figures) each(m Metric) iter.Seq2[labels, float64] {
	return func(yield func(labels, float64) bool) {
		series := f.all[m.Name]
		if series == nil {
			return
		}
		for _, of := range series.order {
			if !yield(of, series.of[of]) {
				return
			}
		}
	}
}

// add adds a value. Beyond most series it goes to that of "other".
func (f figures) add(m Metric, combine merge, value float64, of labels) {
	series := f.all[m.Name]
	if series == nil {
		series = &values{of: map[labels]float64{}}
		f.all[m.Name] = series
	}
	before, found := series.of[of]
	if !found && len(series.order) >= f.most {
		of = beyond(m, of)
		before, found = series.of[of]
	}
	if found {
		series.of[of] = combine(before, value)
		return
	}
	series.of[of] = value
	series.order = append(series.order, of)
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
	all  map[string]*totalsOf
}

type totalsOf struct {
	order []labels
	of    map[labels]*total
}

type total struct {
	value float64
	last  []float64 // of those that have not ended
	next  []float64
}

func newTotals(most int) totals { return totals{most, map[string]*totalsOf{}} }

// see takes the value of one that has not ended. Several may have the same labels.
func (t totals) see(m Metric, value float64, of labels) {
	series := t.all[m.Name]
	if series == nil {
		series = &totalsOf{of: map[labels]*total{}}
		t.all[m.Name] = series
	}
	if series.of[of] == nil && len(series.order) >= t.most {
		of = beyond(m, of)
	}
	if series.of[of] == nil {
		series.of[of] = &total{}
		series.order = append(series.order, of)
	}
	series.of[of].next = append(series.of[of].next, value)
}

// addTo adds the totals of a metric to figures.
func (t totals) addTo(to figures, m Metric) {
	if series := t.all[m.Name]; series != nil {
		for _, of := range series.order {
			to.add(m, sum, series.of[of].value, of)
		}
	}
}

// done ends a collection: what see has not got has ended.
func (t totals) done() {
	for _, series := range t.all {
		for _, one := range series.of {
			one.grow()
		}
	}
}

// grow adds what is new. A value goes on from the largest last one that is not above it: so the total is never too
// large. What remains has ended, and stays in the total.
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

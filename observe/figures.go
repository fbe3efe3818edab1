package observe

import (
	"cmp"
	"iter"
	"slices"
)

// labels are the values of the labels of a metric, in their order. The rest is empty.
type labels [4]string

// A merge makes one value of two that have the same labels.
type merge func(a, b float64) float64

func sum(a, b float64) float64      { return a + b }
func largest(a, b float64) float64  { return max(a, b) }
func smallest(a, b float64) float64 { return min(a, b) }

// series are the values of the metrics, by their names and labels. Their order is that in which they came, so that the
// same ones are beyond most at each collection.
type series[V any] struct {
	most  int
	order map[string][]labels // what series a metric has, by its name
	all   map[seriesKey]*V
}

type seriesKey struct {
	metric string
	labels labels
}

func newSeries[V any](most int) series[V] {
	return series[V]{most, map[string][]labels{}, map[seriesKey]*V{}}
}

// at returns the value of a metric with its labels, and whether it was there. Beyond most it is that of "other".
func (s series[V]) at(m Metric, of labels) (value *V, is labels, found bool) {
	if s.all[seriesKey{m.Name, of}] == nil && len(s.order[m.Name]) >= s.most {
		of = beyond(m, of)
	}
	key := seriesKey{m.Name, of}
	if value, found = s.all[key]; !found {
		value = new(V)
		s.all[key], s.order[m.Name] = value, append(s.order[m.Name], of)
	}
	return value, of, found
}

// each returns the values of a metric, in their order.
func (s series[V]) each(m Metric) iter.Seq2[labels, V] {
	return func(yield func(labels, V) bool) {
		for _, of := range s.order[m.Name] {
			if !yield(of, *s.all[seriesKey{m.Name, of}]) {
				return
			}
		}
	}
}

// figures are the values of a collection.
type figures struct{ series[float64] }

func newFigures(most int) figures { return figures{newSeries[float64](most)} }

// add adds a value.
func (f figures) add(m Metric, combine merge, value float64, of labels) {
	before, _, found := f.at(m, of)
	if found {
		value = combine(*before, value)
	}
	*before = value
}

// foreign are the labels whose values the app, or who publishes, chooses. The library itself names those of the others.
var foreign = map[string]bool{
	labelTopic: true, labelHandler: true, labelQueue: true, labelTier: true, labelKey: true,
}

// beyond returns the labels of the series for those beyond Config.MaxSeries.
func beyond(m Metric, of labels) labels {
	for i, name := range m.Labels {
		if of[i] != "" && (foreign[name] || name == labelReason && m.across == nil) { // that has names of rules
			of[i] = other
		}
	}
	return of
}

// totals are counters that never fall, although what they are read from ends and begins again at 0.
type totals struct{ series[total] }

type total struct {
	value float64
	last  []float64 // the last values of the Connections that have not ended
	next  []float64
}

func newTotals(most int) totals { return totals{newSeries[total](most)} }

// see takes the value of one that has not ended. Several may have the same labels.
func (t totals) see(m Metric, value float64, of labels) {
	one, _, _ := t.at(m, of)
	one.next = append(one.next, value)
}

// addTo adds the totals of metrics to figures.
func (t totals) addTo(to figures, all []Metric) {
	for _, m := range all {
		for of, one := range t.each(m) {
			to.add(m, sum, one.value, of)
		}
	}
}

// done ends a collection: what see has not got has ended.
func (t totals) done() {
	for _, one := range t.all {
		one.grow()
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

package observe

import (
	"errors"
	"strings"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/tieredretry/watermill-retry/internal/lettertext"
)

// instruments makes the instruments of a meter, and keeps the errors.
type instruments struct {
	meter  metric.Meter
	faults []error
}

func made[I any](from *instruments, instrument I, err error) I {
	if err != nil {
		from.faults = append(from.faults, err)
	}
	return instrument
}

func (i *instruments) err() error { return errors.Join(i.faults...) }

func (i *instruments) counter(m Metric) metric.Int64Counter {
	c, err := i.meter.Int64Counter(m.Name, metric.WithUnit(m.Unit), metric.WithDescription(m.Description))
	return made(i, c, err)
}

func (i *instruments) histogram(m Metric) metric.Float64Histogram {
	h, err := i.meter.Float64Histogram(m.Name, metric.WithUnit(m.Unit), metric.WithDescription(m.Description),
		metric.WithExplicitBucketBoundaries(m.Buckets...))
	return made(i, h, err)
}

// An observable is an instrument whose values are read at a collection.
type observable struct {
	whole   metric.Int64Observable
	seconds metric.Float64Observable
}

func (i *instruments) observable(m Metric) observable {
	unit, description := metric.WithUnit(m.Unit), metric.WithDescription(m.Description)
	switch {
	case m.Kind == counter:
		c, err := i.meter.Int64ObservableCounter(m.Name, unit, description)
		return observable{whole: made(i, c, err)}
	case m.Unit == "s":
		g, err := i.meter.Float64ObservableGauge(m.Name, unit, description)
		return observable{seconds: made(i, g, err)}
	default:
		g, err := i.meter.Int64ObservableGauge(m.Name, unit, description)
		return observable{whole: made(i, g, err)}
	}
}

func (o observable) instrument() metric.Observable {
	if o.seconds != nil {
		return o.seconds
	}
	return o.whole
}

func (o observable) observe(to metric.Observer, value float64, labels metric.ObserveOption) {
	if o.seconds != nil {
		to.ObserveFloat64(o.seconds, value, labels)
	} else {
		to.ObserveInt64(o.whole, int64(value), labels)
	}
}

// labelled returns the option for the labels of a metric.
func labelled(m Metric, values labels) metric.MeasurementOption {
	attributes := make([]attribute.KeyValue, len(m.Labels))
	for i, name := range m.Labels {
		attributes[i] = attribute.String(name, labelText(values[i], maxLabel))
	}
	return metric.WithAttributeSet(attribute.NewSet(attributes...))
}

const (
	// other is the value of a label beyond Config.MaxSeries.
	other = "other"

	// maxReason and maxLabel are the lengths of labels, in bytes.
	maxReason = 64
	maxLabel  = 255
)

// labelText returns a value that Prometheus accepts: valid UTF-8, of at most so many bytes. It allocates nothing
// where the text is one.
func labelText(text string, most int) string {
	return strings.ToValidUTF8(lettertext.Cut(most, text), "\uFFFD")
}

// A table has the options for each of a bounded number of labels of a metric. It is safe for concurrent use. A get of
// labels that it has allocates nothing.
type table struct {
	metric Metric
	most   int

	mu    sync.RWMutex
	all   map[labels]options
	extra map[labels]options // the options of the labels beyond most
}

// options are the labels of one series, as a counter and as a histogram takes them.
type options struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

func newTable(m Metric, most int) *table {
	return &table{metric: m, most: most, all: map[labels]options{}, extra: map[labels]options{}}
}

func (t *table) get(of labels) options {
	t.mu.RLock()
	found, is := t.all[of]
	t.mu.RUnlock()
	if is {
		return found
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, is := t.all[of]; !is && len(t.all) >= t.most {
		return t.made(t.extra, beyond(t.metric, of))
	}
	return t.made(t.all, of)
}

// made returns the options among others, and makes them where they are not there.
func (t *table) made(among map[labels]options, of labels) options {
	found, is := among[of]
	if !is {
		option := labelled(t.metric, of)
		found = options{[]metric.AddOption{option}, []metric.RecordOption{option}}
		among[of] = found
	}
	return found
}

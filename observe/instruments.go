package observe

import (
	"errors"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/tieredretry/watermill-retry/internal/lettertext"
)

// instruments are those of all metrics, by name.
type instruments struct {
	counters    map[string]metric.Int64Counter
	histograms  map[string]metric.Float64Histogram
	observables map[string]metric.Observable // instruments that are read at a collection
}

func newInstruments(meter metric.Meter) (*instruments, error) {
	i := &instruments{
		counters: map[string]metric.Int64Counter{}, histograms: map[string]metric.Float64Histogram{},
		observables: map[string]metric.Observable{},
	}
	var faults []error
	for _, m := range Metrics() {
		var err error
		unit, description := metric.WithUnit(m.Unit), metric.WithDescription(m.Description)
		switch {
		case m.Kind == histogram:
			i.histograms[m.Name], err = meter.Float64Histogram(m.Name, unit, description,
				metric.WithExplicitBucketBoundaries(m.Buckets...))
		case m.across == nil:
			i.counters[m.Name], err = meter.Int64Counter(m.Name, unit, description)
		case m.Kind == counter:
			i.observables[m.Name], err = meter.Int64ObservableCounter(m.Name, unit, description)
		case m.Unit == "s":
			i.observables[m.Name], err = meter.Float64ObservableGauge(m.Name, unit, description)
		default:
			i.observables[m.Name], err = meter.Int64ObservableGauge(m.Name, unit, description)
		}
		faults = append(faults, err)
	}
	return i, errors.Join(faults...)
}

// observe hands on a value that was read.
func (i *instruments) observe(to metric.Observer, m Metric, value float64, values labels) {
	switch of := i.observables[m.Name].(type) {
	case metric.Float64Observable:
		to.ObserveFloat64(of, value, labelled(m, values))
	case metric.Int64Observable:
		to.ObserveInt64(of, int64(value), labelled(m, values))
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

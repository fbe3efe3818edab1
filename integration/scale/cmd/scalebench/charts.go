package main

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	chartWidth  = 18 * vg.Centimeter
	chartHeight = 10 * vg.Centimeter
	chartMargin = 5 * vg.Millimeter
)

// draw writes a chart for each question that was measured. The same figures make the same files.
func (r *report) draw(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	var faults []error
	for _, c := range []struct {
		name string
		make func() (*plot.Plot, error)
	}{
		{"lateness", r.latenessChart}, {"worker", r.workerChart}, {"million", r.millionChart}, {"growth", r.growthChart},
		{"start", r.startChart}, {"cost", r.costChart},
	} {
		p, err := c.make()
		if err == nil && p != nil {
			err = save(p, filepath.Join(folder, chartFile(c.name)+".svg"))
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("chart %s: %w", c.name, err))
		}
	}
	return errors.Join(faults...)
}

// chartFile is the name of a question's file, without its ending.
func chartFile(question string) string { return "scale-" + question }

// save has a white background and a margin, so that a chart can be read on a dark page.
func save(p *plot.Plot, path string) error {
	canvas := vgsvg.New(chartWidth, chartHeight)
	whole := draw.New(canvas)
	whole.FillPolygon(color.White, []vg.Point{{}, {X: chartWidth}, {X: chartWidth, Y: chartHeight}, {Y: chartHeight}})
	p.Draw(draw.Crop(whole, chartMargin, -chartMargin, chartMargin, -chartMargin))
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return err
	}
	return os.WriteFile(path, svg.Bytes(), 0o644)
}

func newChart(title, x, y string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.White
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding, p.X.Label.Padding, p.Y.Label.Padding = vg.Points(10), vg.Points(4), vg.Points(4)
	for _, style := range []*text.Style{
		&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle,
	} {
		style.Font.Variant = "Sans"
	}
	p.Legend.TextStyle.Font.Size = vg.Points(9)
	p.Legend.Padding = vg.Points(2)
	p.Legend.Top = true
	p.X.Tick.Marker, p.Y.Tick.Marker = ticks{plot.DefaultTicks{}}, ticks{plot.DefaultTicks{}}
	p.Add(plotter.NewGrid())
	return p
}

// ticks have labels with commas, and no exponents.
type ticks struct{ plot.Ticker }

// Ticks implements plot.Ticker.
func (t ticks) Ticks(least, most float64) []plot.Tick {
	all := t.Ticker.Ticks(least, most)
	for i, tick := range all {
		if tick.IsMinor() {
			continue
		}
		if all[i].Label = strconv.FormatFloat(tick.Value, 'g', 6, 64); tick.Value >= 1000 {
			all[i].Label = number(tick.Value)
		}
	}
	return all
}

// logarithmic makes an axis logarithmic.
func logarithmic(axis *plot.Axis) {
	axis.Scale, axis.Tick.Marker = plot.LogScale{}, ticks{plot.LogTicks{}}
}

// legendAt puts the legend into a corner, beside the lines.
func legendAt(p *plot.Plot, left, top bool) {
	p.Legend.Left, p.Legend.Top = left, top
	p.Legend.XOffs, p.Legend.YOffs = -vg.Points(8), vg.Points(8)
	if left {
		p.Legend.XOffs = vg.Points(8)
	}
	if top {
		p.Legend.YOffs = -vg.Points(4)
	}
}

// line adds a line. Those of one color belong together, those of one dash too.
func line(p *plot.Plot, name string, hue, dash int, points []point) error {
	xys := make(plotter.XYs, len(points))
	for i, at := range points {
		xys[i] = plotter.XY{X: at.x, Y: at.y}
	}
	l, err := plotter.NewLine(xys)
	if err != nil {
		return err
	}
	l.Width = vg.Points(1.5)
	l.Color, l.Dashes = plotutil.Color(hue), plotutil.Dashes(dash)
	p.Add(l)
	p.Legend.Add(name, l)
	return nil
}

// A palette gives each name a number, in the order of their first use.
type palette map[string]int

func (p palette) of(name string) int {
	if _, known := p[name]; !known {
		p[name] = len(p)
	}
	return p[name]
}

// thin keeps at most this many points of a line, the last one included.
func thin(points []point, most int) []point {
	if len(points) <= most {
		return points
	}
	kept := make([]point, most)
	for i := range kept {
		kept[i] = points[i*(len(points)-1)/(most-1)]
	}
	return kept
}

// linePoints is how many points a line has: the files must stay small.
const linePoints = 100

func (r *report) latenessChart() (*plot.Plot, error) {
	if len(r.lateness) == 0 {
		return nil, nil
	}
	p := newChart("Lateness with delays of 1, 2, 5 and 10 s mixed", "later than its delay, ms (logarithmic)", "part of the messages")
	logarithmic(&p.X)
	legendAt(p, false, false)
	sides, brokers := palette{}, palette{}
	for _, result := range r.lateness {
		points := make([]point, len(result.sorted))
		for i, late := range result.sorted {
			points[i] = point{max(late, 1), float64(i+1) / float64(len(points))}
		}
		if err := line(p, result.side+", "+result.broker, sides.of(result.side), brokers.of(result.broker), thin(points, linePoints)); err != nil {
			return nil, err
		}
	}
	p.X.Max *= 30 // room for the legend
	return p, nil
}

// fromStart makes a line of what has happened until each time.
func fromStart(times []time.Duration) []point {
	points := []point{{}}
	for i, at := range times {
		points = append(points, point{at.Seconds(), float64(i + 1)})
	}
	return thin(points, linePoints)
}

func (r *report) workerChart() (*plot.Plot, error) {
	if len(r.worker) == 0 {
		return nil, nil
	}
	p := newChart("One handler, 5% of its messages fail once and wait for 1 s", "seconds", "messages done")
	legendAt(p, false, false)
	sides, brokers := palette{}, palette{}
	for _, result := range r.worker {
		if err := line(p, result.side+", "+result.broker, sides.of(result.side), brokers.of(result.broker), fromStart(result.done)); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (r *report) millionChart() (*plot.Plot, error) {
	if len(r.million) == 0 {
		return nil, nil
	}
	p := newChart(number(float64(r.million[0].messages))+" messages are due at about the same time", "seconds since the first came back", "messages that came back")
	legendAt(p, false, false)
	sides, brokers := palette{}, palette{}
	for _, result := range r.million {
		if err := line(p, result.side+", "+result.broker, brokers.of(result.broker), sides.of(result.side), thin(result.progress, linePoints)); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (r *report) growthChart() (*plot.Plot, error) {
	if len(r.growth) == 0 {
		return nil, nil
	}
	p := newChart("Six tiers and their bindings are declared", "work queues (logarithmic)", "seconds (logarithmic)")
	logarithmic(&p.X)
	logarithmic(&p.Y)
	legendAt(p, true, true)
	layouts, brokers := palette{}, palette{}
	lines, names := map[string][]point{}, []string(nil)
	for _, result := range r.growth {
		name := result.layout + ", " + result.broker
		if lines[name] == nil {
			names = append(names, name)
			layouts.of(result.layout)
			brokers.of(result.broker)
		}
		lines[name] = append(lines[name], point{float64(result.queues), max(result.declare.Seconds(), 0.001)})
	}
	for _, result := range r.growth {
		name := result.layout + ", " + result.broker
		if len(names) > 0 && names[0] == name {
			names = names[1:]
			if err := line(p, name, layouts.of(result.layout), brokers.of(result.broker), lines[name]); err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

func (r *report) startChart() (*plot.Plot, error) {
	if len(r.start) == 0 {
		return nil, nil
	}
	p := newChart(fmt.Sprintf("%d instances start at the same time", len(r.start[0].consuming)), "seconds", "instances that consume")
	legendAt(p, true, true)
	layouts, brokers := palette{}, palette{}
	for _, result := range r.start {
		if err := line(p, result.layout+", "+result.broker, layouts.of(result.layout), brokers.of(result.broker), fromStart(result.consuming)); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// costChart has a box for each side: the middle half of the rounds, with the median.
func (r *report) costChart() (*plot.Plot, error) {
	if len(r.cost) == 0 {
		return nil, nil
	}
	p := newChart("Processor time of the broker for one retry", "divided by that of a retry by hand, in the same round", "")
	var names []string
	for i, result := range r.cost {
		at := float64(len(r.cost) - 1 - i) // the first is at the top
		box, err := plotter.NewBoxPlot(vg.Points(12), at, plotter.Values(result.ratios))
		if err != nil {
			return nil, err
		}
		box.Horizontal = true
		p.Add(box)
		names = append([]string{result.side + ", " + result.broker}, names...)
	}
	p.NominalY(names...)
	p.Y.Tick.Label.Font.Variant = "Sans"
	return p, nil
}

package main

import (
	"errors"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

const (
	chartWidth  = 18 * vg.Centimeter
	chartHeight = 10 * vg.Centimeter
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
			err = p.Save(chartWidth, chartHeight, filepath.Join(folder, "scale-"+c.name+".svg"))
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("chart %s: %w", c.name, err))
		}
	}
	return errors.Join(faults...)
}

// newChart has a white background, so that it can be read on a dark page.
func newChart(title, x, y string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.White
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding = vg.Points(6)
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	return p
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
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: 0}
	p.Legend.Top = false
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
	p.Legend.Top = false
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
	p.Legend.Top = false
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
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: 0}
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Legend.Left = true
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
	p.Legend.Left = true
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
	return p, nil
}

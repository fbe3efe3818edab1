//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"image/color"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	promapi "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// rate is what Grafana would put in for $__rate_interval, at a scrape each second and a run of a minute.
const rate = "10s"

// drawn are the titles of the panels in the picture: those of an outage.
var drawn = []string{
	"Outcomes", "Failing share by handler", "Handlers that take no messages", "Messages on work queues", "Messages on tiers", "In flight", "Dead letters",
	"Lateness of retries", "Duration of the handler",
}

// colors are those of the lines, in their order.
var colors = []color.RGBA{
	{0x37, 0x72, 0xcf, 255}, {0xe0, 0x7b, 0x39, 255}, {0x4c, 0x9f, 0x50, 255}, {0xc4, 0x41, 0x62, 255}, {0x8e, 0x6b, 0xbf, 255},
	{0x8a, 0x6d, 0x3b, 255}, {0x2a, 0x9d, 0x9d, 255},
}

type board struct {
	Title  string  `json:"title"`
	Panels []panel `json:"panels"`
}

type panel struct {
	Title       string `json:"title"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
	Targets []struct {
		Expr         string `json:"expr"`
		LegendFormat string `json:"legendFormat"`
	} `json:"targets"`
}

// line is one series of a panel.
type line struct {
	Name   string
	Color  template.CSS
	points plotter.XYs
}

func readBoard(file string) (*board, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	b := &board{}
	return b, json.Unmarshal(text, b)
}

var (
	variable    = regexp.MustCompile(`\$\{?(\w+)\}?`)
	placeholder = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)
)

// queryOf replaces the variables of the board: $handler is the handler of the demo, and every other one is "all".
func queryOf(expression string) string {
	return variable.ReplaceAllStringFunc(expression, func(name string) string {
		switch variable.FindStringSubmatch(name)[1] {
		case "__rate_interval":
			return rate
		case "handler":
			return "billing"
		default:
			return ".*"
		}
	})
}

// draw returns a page with the panels of an outage.
func (b *board) draw(ctx context.Context, prometheus string, began, ended time.Time) (string, error) {
	client, err := api.NewClient(api.Config{Address: prometheus})
	if err != nil {
		return "", err
	}
	type drawnPanel struct {
		Title, Unit string
		Chart       template.HTML
		Lines       []line
	}
	page := struct {
		Title  string
		Panels []drawnPanel
	}{Title: b.Title}
	for _, title := range drawn {
		i := slices.IndexFunc(b.Panels, func(p panel) bool { return p.Title == title && len(p.Targets) > 0 })
		if i < 0 {
			return "", fmt.Errorf("the board has no panel %q", title)
		}
		lines, err := b.Panels[i].lines(ctx, promapi.NewAPI(client), began, ended)
		if err != nil {
			return "", fmt.Errorf("panel %q: %w", title, err)
		}
		chart, err := chartOf(lines, b.Panels[i].FieldConfig.Defaults.Unit)
		if err != nil {
			return "", fmt.Errorf("panel %q: %w", title, err)
		}
		page.Panels = append(page.Panels, drawnPanel{Title: title, Chart: chart, Lines: lines})
	}
	var text bytes.Buffer
	err = boardPage.Execute(&text, page)
	return text.String(), err
}

// lines asks for the data of a panel. Lines that are 0 all the time are left out where others are not.
func (p *panel) lines(ctx context.Context, prometheus promapi.API, began, ended time.Time) ([]line, error) {
	var all []line
	for _, target := range p.Targets {
		value, _, err := prometheus.QueryRange(ctx, queryOf(target.Expr), promapi.Range{Start: began, End: ended, Step: time.Second})
		if err != nil {
			return nil, err
		}
		series, _ := value.(model.Matrix)
		for _, s := range series {
			l := line{Name: strings.TrimSpace(placeholder.ReplaceAllStringFunc(target.LegendFormat, func(label string) string {
				return string(s.Metric[model.LabelName(placeholder.FindStringSubmatch(label)[1])])
			}))}
			for _, at := range s.Values {
				if v := float64(at.Value); !math.IsNaN(v) && !math.IsInf(v, 0) {
					l.points = append(l.points, plotter.XY{X: at.Timestamp.Time().Sub(began).Seconds(), Y: v})
				}
			}
			if len(l.points) > 0 {
				all = append(all, l)
			}
		}
	}
	if len(all) == 0 {
		return nil, errors.New("it has no data")
	}
	flat := func(l line) bool { return highest(l.points) == 0 }
	if rest := slices.DeleteFunc(slices.Clone(all), flat); len(rest) > 0 {
		all = rest
	}
	slices.SortStableFunc(all, func(a, b line) int { return strings.Compare(a.Name, b.Name) })
	for i := range all {
		c := colors[i%len(colors)]
		all[i].Color = template.CSS(fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B))
	}
	return all, nil
}

func highest(points plotter.XYs) (most float64) {
	for _, at := range points {
		most = max(most, at.Y)
	}
	return most
}

// chartOf draws lines as an SVG.
func chartOf(lines []line, unit string) (template.HTML, error) {
	p := plot.New()
	p.BackgroundColor = color.Transparent
	p.Y.Min = 0
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.LineStyle.Color = color.Gray{0x99}
		axis.Tick.LineStyle.Color = color.Gray{0x99}
		axis.Tick.Label.Color = color.Gray{0x55}
		axis.Tick.Label.Font.Size = vg.Points(8)
		axis.Tick.Label.Font.Variant = "Sans"
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = units{unit: "s"}, units{unit: unit}
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{0xe6}, color.Transparent
	p.Add(grid)
	for i, l := range lines {
		one, err := plotter.NewLine(l.points)
		if err != nil {
			return "", err
		}
		one.Color, one.Width = colors[i%len(colors)], vg.Points(1.3)
		p.Add(one)
		p.Y.Max = max(p.Y.Max, highest(l.points)*1.05)
	}
	p.Y.Min = 0
	p.Y.Max = max(p.Y.Max, 1e-3)
	if unit == "percentunit" || unit == "short" && p.Y.Max < 1.2 {
		p.Y.Max = max(p.Y.Max, 1.05)
	}
	canvas := vgsvg.New(vg.Points(280), vg.Points(140))
	p.Draw(draw.Crop(draw.New(canvas), 0, -vg.Points(8), 0, 0)) // room for the last label
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return "", err
	}
	text := svg.String()
	return template.HTML(text[strings.Index(text, "<svg"):]), nil
}

// units are the ticks of an axis, with the units of Grafana that the board has.
type units struct{ unit string }

// Ticks implements plot.Ticker.
func (u units) Ticks(least, most float64) []plot.Tick {
	all := slices.DeleteFunc(plot.DefaultTicks{}.Ticks(least, most), plot.Tick.IsMinor)
	for i, tick := range all {
		all[i].Label = u.label(tick.Value)
	}
	return all
}

func (u units) label(v float64) string {
	number := func(v float64, unit string) string { return strconv.FormatFloat(v, 'g', 4, 64) + unit }
	switch {
	case u.unit == "percentunit":
		return number(v*100, " %")
	case u.unit == "s" && v > 0 && v < 1:
		return number(v*1000, " ms")
	case u.unit == "s":
		return number(v, " s")
	case u.unit == "ops":
		return number(v, " /s")
	default:
		return number(v, "")
	}
}

var boardPage = template.Must(template.New("board").Parse(`<!doctype html><meta charset="utf-8"><title>board</title><style>
body { margin: 0; padding: 14px; background: #f4f5f7; font: 13px "DejaVu Sans", sans-serif; color: #222 }
h1 { font-size: 15px; margin: 0 0 4px } p { margin: 0 0 12px; color: #555; font-size: 12px }
main { display: grid; grid-template-columns: repeat(3, 1fr); gap: 10px }
section { background: #fff; border: 1px solid #dcdfe4; border-radius: 4px; padding: 8px 10px 6px }
h2 { font-size: 13px; margin: 0 0 4px } svg { width: 100%; height: auto; display: block }
ul { margin: 4px 0 0; padding: 0; list-style: none; font-size: 11px; color: #444 } li { display: inline-block; margin-right: 12px }
i { display: inline-block; width: 12px; height: 3px; margin-right: 4px; vertical-align: middle }
</style><h1>The board "{{.Title}}": panels of an outage</h1>
<p>The panels of observability/dashboards/app.json with the data of a run, drawn by example/observability/pictures, not by Grafana.</p>
<main>{{range .Panels}}<section><h2>{{.Title}}</h2>{{.Chart}}<ul>{{range .Lines}}<li><i style="background: {{.Color}}"></i>{{.Name}}</li>{{end}}</ul></section>
{{end}}</main>`))

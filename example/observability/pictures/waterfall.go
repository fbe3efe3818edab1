//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

const watched = "order-7"

// span is a line of the exporter stdouttrace.
type span struct {
	Name        string
	SpanContext struct{ TraceID, SpanID string }
	Parent      struct{ SpanID string }
	StartTime   time.Time
	EndTime     time.Time
	Attributes  []struct {
		Key   string
		Value struct{ Value any }
	}
	Status struct{ Code, Description string }
}

func (s *span) attribute(key string) string {
	for _, a := range s.Attributes {
		if a.Key == "watermill.retry."+key {
			return fmt.Sprint(a.Value.Value)
		}
	}
	return ""
}

// readTrace returns the spans of the trace of the watched order, by their start.
func readTrace(file string) ([]span, error) {
	lines, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = lines.Close() }()
	var all []span
	trace := ""
	for decoder := json.NewDecoder(lines); ; {
		var s span
		err := decoder.Decode(&s)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // the demo still writes
			break
		}
		if err != nil {
			return nil, err
		}
		if all = append(all, s); s.Name == watched {
			trace = s.SpanContext.TraceID
		}
	}
	all = slices.DeleteFunc(all, func(s span) bool { return s.SpanContext.TraceID != trace })
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no trace of %s", file, watched)
	}
	slices.SortStableFunc(all, func(a, b span) int { return a.StartTime.Compare(b.StartTime) })
	return all, nil
}

// bar is a row of the waterfall. Left and Width are shares of the chart, in percent.
type bar struct {
	Name, Kind, Took, Note string
	Indent                 int
	Left, Width            float64
}

// waterfall returns a page with the trace.
func waterfall(file string) (string, error) {
	spans, err := readTrace(file)
	if err != nil {
		return "", err
	}
	began, ended := spans[0].StartTime, spans[0].EndTime
	children := map[string][]span{}
	there := map[string]bool{}
	for _, s := range spans {
		there[s.SpanContext.SpanID] = true
	}
	for _, s := range spans {
		if s.EndTime.After(ended) {
			ended = s.EndTime
		}
		parent := s.Parent.SpanID
		if !there[parent] {
			parent = ""
		}
		children[parent] = append(children[parent], s)
	}
	whole := ended.Sub(began).Seconds() * 1.01
	share := func(t time.Time) float64 { return t.Sub(began).Seconds() / whole * 100 }
	var bars []bar
	attempts := 0
	var add func(parent string, indent int)
	add = func(parent string, indent int) {
		for _, s := range children[parent] {
			b := bar{Name: s.Name, Kind: "app", Indent: 14 * indent, Left: share(s.StartTime), Width: share(s.EndTime) - share(s.StartTime), Took: took(s.EndTime.Sub(s.StartTime))}
			switch {
			case strings.HasPrefix(s.Name, "process "):
				attempts++
				b.Name, b.Kind, b.Note = fmt.Sprintf("%s (attempt %d)", s.Name, attempts), "attempt", s.attribute("outcome")
				if reason := s.attribute("dead_reason"); reason != "" {
					b.Note += ", " + reason
				}
			case strings.HasPrefix(s.Name, "wait "):
				b.Kind = "wait"
			case strings.HasPrefix(s.Name, "dead-letter "):
				b.Kind, b.Took = "dead", ""
			case s.Name == "redrive":
				b.Kind, b.Took, b.Note = "redrive", "", "by "+s.attribute("redrive.by")
			}
			if b.Left > 75 { // the text is on the left
				b.Kind += " late"
			}
			if s.Status.Code == "Error" {
				b.Kind += " failed"
			}
			bars = append(bars, b)
			add(s.SpanContext.SpanID, indent+1)
		}
	}
	add("", 0)
	type tick struct {
		Left float64
		Text string
	}
	var ticks []tick
	for at := time.Duration(0); at.Seconds() < whole*0.95; at += 5 * time.Second {
		ticks = append(ticks, tick{at.Seconds() / whole * 100, fmt.Sprintf("%.0f s", at.Seconds())})
	}
	var text bytes.Buffer
	err = tracePage.Execute(&text, map[string]any{"Order": watched, "Trace": spans[0].SpanContext.TraceID, "Bars": bars, "Ticks": ticks})
	return text.String(), err
}

func took(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	default:
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
}

var tracePage = template.Must(template.New("trace").Parse(`<!doctype html><meta charset="utf-8"><title>trace</title><style>
body { margin: 0; padding: 14px; background: #fff; font: 12px "DejaVu Sans", sans-serif; color: #222 }
h1 { font-size: 15px; margin: 0 0 4px } p { margin: 0 0 12px; color: #555 }
.row { display: flex; height: 22px; line-height: 22px; border-top: 1px solid #eee } .name { width: 270px; flex: none; white-space: nowrap; overflow: hidden }
.chart { position: relative; flex: 1 } .bar { position: absolute; top: 5px; height: 12px; min-width: 4px; border-radius: 2px; background: #7aa6e0 }
.text { position: absolute; left: calc(100% + 6px); top: -5px; white-space: nowrap; color: #444; font-size: 11px }
.late .text { left: auto; right: calc(100% + 6px) } .attempt .bar { background: #3772cf } .failed .bar { background: #d0475a } .wait .bar { background: #d9d9d9 } .dead .bar { background: #7d1128 }
.redrive .bar { background: #4c9f50 } .wait .name { color: #777 } .tick { position: absolute; color: #777; font-size: 11px }
</style><h1>The trace of {{.Order}}</h1>
<p>The spans of a run, drawn by example/observability/pictures, not by Jaeger. Trace {{.Trace}}.</p>
<div class="row" style="border: 0"><div class="name"></div><div class="chart">{{range .Ticks}}<span class="tick" style="left: {{.Left}}%">{{.Text}}</span>{{end}}</div></div>
{{range .Bars}}<div class="row {{.Kind}}"><div class="name" style="text-indent: {{.Indent}}px">{{.Name}}</div><div class="chart">
<div class="bar" style="left: {{.Left}}%; width: {{.Width}}%"><span class="text">{{.Took}}{{if and .Took .Note}}, {{end}}{{.Note}}</span></div></div></div>
{{end}}`))

// Package board has Grafana's boards of this library as data, and writes them as JSON into observability/dashboards.
// Its tests evaluate every query of the boards, of the alerts and of the documentation with a real Prometheus: see
// `make test-observe`.
package board

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

//go:generate go run ./cmd/boards ../../../observability/dashboards

// Board is one of Grafana's dashboards.
type Board struct {
	File, UID, Title, Description string
	Variables                     []Variable
	Rows                          []Row
}

// Variable is a field at the top of a board. It has a Query, whose results are the choices, or a Text, which can be
// changed.
type Variable struct {
	Name, Label, Query, Text string
	All                      bool // several values may be chosen, at first all
}

// Row is a part of a board, with a heading.
type Row struct {
	Title  string
	Panels []Panel
}

// Panel is one picture. The rows of a board fill their width of 24 with panels, from left to right.
type Panel struct {
	Title, Description string
	Stat               bool   // the last value of each series, else lines over time
	Unit               string // one of Grafana's ids of units
	Width              int    // of 24
	Queries            []Query
	Warning, Critical  float64 // thresholds; 0: none
}

// Query is one expression of PromQL, and how its series are called.
type Query struct{ Expr, Legend string }

// Boards returns all boards.
func Boards() []Board { return []Board{app(), rabbitMQ()} }

const (
	width, height = 24, 8
	schemaVersion = 38 // of Grafana 10.0; later versions convert it when they read it
)

type object = map[string]any

var dataSource = object{"type": "prometheus", "uid": "${datasource}"}

// JSON returns the board in Grafana's format.
func (b Board) JSON() ([]byte, error) {
	variables := []any{object{
		"name": "datasource", "label": "Data " +
			"source", "type": "datasource", "query": "prometheus", "refresh": 1, "current": object{},
	}}
	for _, v := range b.Variables {
		variables = append(variables, v.model())
	}
	var panels []any
	y := 0
	for _, row := range b.Rows {
		panels = append(panels, object{
			"id": len(panels) + 1, "type": "row", "title": row.Title, "collapsed": false, "panels": []any{},
			"gridPos": place(0, y, width, 1),
		})
		y++
		x := 0
		for _, p := range row.Panels {
			if x+p.Width > width {
				x, y = 0, y+height
			}
			panels = append(panels, p.model(len(panels)+1, place(x, y, p.Width, height)))
			x += p.Width
		}
		y += height
	}
	text, err := plain(object{
		"uid": b.UID, "title": b.Title, "description": b.Description, "tags": []string{"watermill-retry"},
		"schemaVersion": schemaVersion,
		"version":       1, "editable": true, "graphTooltip": 1, "refresh": "30s", "time": object{"from": "now-3h",
			"to": "now"},
		"annotations": object{"list": []any{}}, "templating": object{"list": variables}, "panels": panels,
	})
	if err != nil {
		return nil, err
	}
	return layOut(text)
}

func place(x, y, w, h int) object { return object{"x": x, "y": y, "w": w, "h": h} }

func (v Variable) model() object {
	if v.Query == "" {
		return object{
			"name": v.Name, "label": v.Label, "type": "textbox", "query": v.Text, "current": object{"text": v.Text,
				"value": v.Text},
		}
	}
	model := object{
		"name": v.Name, "label": v.Label, "type": "query", "datasource": dataSource, "definition": v.Query,
		"query": object{"query": v.Query, "refId": v.Name}, "refresh": 2, "sort": 1,
	}
	if v.All {
		model["multi"], model["includeAll"], model["allValue"] = true, true, ".*"
		model["current"] = object{"text": []string{"All"}, "value": []string{"$__all"}}
	}
	return model
}

func (p Panel) model(id int, gridPos object) object {
	var targets []any
	for i, q := range p.Queries {
		target := object{
			"refId": string(rune('A' + i)), "datasource": dataSource, "expr": q.Expr, "legendFormat": q.Legend,
			"instant": p.Stat, "range": !p.Stat,
		}
		if strings.Contains(q.Expr, "_bucket") { // those of a counter are 1, which is no value of its panel
			target["exemplar"] = true
		}
		targets = append(targets, target)
	}
	kind := "timeseries"
	defaults := object{"unit": p.Unit, "min": 0, "thresholds": p.thresholds()}
	options := object{
		"legend":  object{"displayMode": "list", "placement": "bottom", "showLegend": true},
		"tooltip": object{"mode": "multi", "sort": "desc"},
	}
	switch {
	case p.Stat:
		kind = "stat"
		options = object{"colorMode": "value", "graphMode": "none",
			"reduceOptions": object{"calcs": []string{"lastNotNull"}}}
	case p.Warning != 0 || p.Critical != 0:
		defaults["custom"] = object{"fillOpacity": 10, "thresholdsStyle": object{"mode": "dashed"}}
	default:
		defaults["custom"] = object{"fillOpacity": 10}
	}
	return object{
		"id": id, "type": kind, "title": p.Title, "description": p.Description, "datasource": dataSource,
		"gridPos":     gridPos,
		"fieldConfig": object{"defaults": defaults, "overrides": []any{}}, "options": options, "targets": targets,
	}
}

func (p Panel) thresholds() object {
	steps := []any{object{"color": "green", "value": nil}}
	if p.Warning != 0 {
		steps = append(steps, object{"color": "orange", "value": p.Warning})
	}
	if p.Critical != 0 {
		steps = append(steps, object{"color": "red", "value": p.Critical})
	}
	return object{"mode": "absolute", "steps": steps}
}

// plain returns JSON without the escapes of HTML: the comparisons of PromQL are to be readable.
func plain(value any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return bytes.TrimSpace(text.Bytes()), err
}

// longest is the length of a line from which on a value is written over several lines.
const longest = 140

// layOut indents JSON, and keeps short values on one line.
func layOut(text []byte) ([]byte, error) {
	var out strings.Builder
	if err := write(&out, text, ""); err != nil {
		return nil, err
	}
	out.WriteString("\n")
	return []byte(out.String()), nil
}

func write(out *strings.Builder, text []byte, indent string) error {
	if len(indent)+len(text) <= longest || (text[0] != '{' && text[0] != '[') {
		out.WriteString(strings.ReplaceAll(string(text), "\n", ""))
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	open, err := decoder.Token()
	if err != nil {
		return err
	}
	inner := indent + "  "
	fmt.Fprintf(out, "%v\n", open)
	for decoder.More() {
		out.WriteString(inner)
		if open == json.Delim('{') {
			name, err := decoder.Token()
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "%q: ", name)
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return err
		}
		if err := write(out, value, inner); err != nil {
			return err
		}
		if decoder.More() {
			out.WriteString(",")
		}
		out.WriteString("\n")
	}
	end, err := decoder.Token()
	fmt.Fprintf(out, "%s%v", indent, end)
	return err
}

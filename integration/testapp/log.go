package testapp

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
)

// Log records the log lines.
type Log struct {
	mu    sync.Mutex
	lines []string
}

// with is a Log whose lines have further fields.
type with struct {
	*Log
	fields watermill.LogFields
}

func (w with) Error(msg string, err error, fields watermill.LogFields) {
	w.Log.Error(msg, err, w.fields.Add(fields))
}
func (w with) Warn(msg string, fields watermill.LogFields) { w.Log.Warn(msg, w.fields.Add(fields)) }
func (w with) Info(msg string, fields watermill.LogFields) { w.Log.Info(msg, w.fields.Add(fields)) }
func (w with) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return with{w.Log, w.fields.Add(fields)}
}

func (l *Log) add(level, msg string, err error, fields watermill.LogFields) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text, _ := json.Marshal(fmt.Sprint(fields))
	l.lines = append(l.lines, fmt.Sprintf("%s %s %v %s", level, msg, err, text))
}

func (l *Log) Error(msg string, err error, fields watermill.LogFields) {
	l.add("error", msg, err, fields)
}
func (l *Log) Warn(msg string, fields watermill.LogFields) { l.add("warn", msg, nil, fields) }
func (l *Log) Info(msg string, fields watermill.LogFields) { l.add("info", msg, nil, fields) }
func (l *Log) Debug(string, watermill.LogFields)           {}
func (l *Log) Trace(string, watermill.LogFields)           {}
func (l *Log) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return with{l, fields}
}

func (l *Log) Count(text string) int {
	return len(l.Lines(text))
}

// Warnings is how many warnings contain the text.
func (l *Log) Warnings(text string) int {
	warnings := 0
	for _, line := range l.Lines(text) {
		if strings.HasPrefix(line, "warn ") {
			warnings++
		}
	}
	return warnings
}

// Lines returns the lines that contain the text.
func (l *Log) Lines(text string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
	for _, line := range l.lines {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

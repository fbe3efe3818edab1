package simulation

import (
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// log writes the log of a process into the trace, and looks for lines that repeat.
type log struct {
	process *process
	mu      sync.Mutex
	lines   map[string]*repeated
}

type repeated struct {
	count int
	since time.Time
}

func newLog(p *process) *log { return &log{process: p, lines: map[string]*repeated{}} }

// line notes a line. Lines about one message are of one cause for each message.
func (l *log) line(level, msg string, err error, fields watermill.LogFields) {
	text := msg
	if err != nil {
		text = fmt.Sprintf("%s: %v", msg, err)
	}
	l.process.world.broker.Note("process %d: %s%s", l.process.number, level, text)
	if fields["message_uuid"] != nil && l.process.world.plan.mayHave(withheld, noDeclare) {
		return // a message has many copies: a minute without a confirm, or a lost connection, makes another one of each
	}
	if msg == "The consumer gives way to another one" {
		l.process.world.ledger.givesWay(fields["reason"] == handsOver)
	}
	if known, is := fields["messages"].(int); is && msg == "Handler pauses, new messages stay in the queue" {
		l.process.world.ledger.pausesBy(l.process, queueOf(fmt.Sprint(fields["handler_name"])), known)
	}
	cause := fmt.Sprint(msg, fields["message_uuid"], fields["handler"], fields["handler_name"], fields["queue"],
		fields["connection"], fields["partition"], fields["tier"])
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.lines[cause]
	if r == nil || time.Since(r.since) >= logWindow {
		r = &repeated{since: time.Now()}
		l.lines[cause] = r
	}
	if r.count++; r.count > logLines && r.count%logLines == 1 {
		l.process.world.ledger.violated("", "the log has %d lines within %v: %s %v", r.count, time.Since(r.since), text,
			fields)
	}
}

func (l *log) Error(msg string, err error, fields watermill.LogFields) {
	l.line("ERROR ", msg, err, fields)
}
func (l *log) Info(msg string, fields watermill.LogFields)            { l.line("", msg, nil, fields) }
func (l *log) Debug(string, watermill.LogFields)                      {}
func (l *log) Trace(string, watermill.LogFields)                      {}
func (l *log) With(added watermill.LogFields) watermill.LoggerAdapter { return with{l, added} }

// with is a log with fields.
type with struct {
	*log
	fields watermill.LogFields
}

func (w with) Error(msg string, err error, fields watermill.LogFields) {
	w.log.Error(msg, err, w.fields.Add(fields))
}
func (w with) Info(msg string, fields watermill.LogFields) { w.log.Info(msg, w.fields.Add(fields)) }
func (w with) With(added watermill.LogFields) watermill.LoggerAdapter {
	return with{w.log, w.fields.Add(added)}
}

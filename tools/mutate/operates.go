package main

var operates = []promise{
	{"Drift and operations: what differs is shown, what conflicts is not changed", []mutation{
		{
			name: "a conflict is declared", breaks: "Apply declares a part of a topology that cannot work",
			file: "rabbitmq/drift/compare.go",
			old:  "n := len(report.Of(Conflict)); n > 0 {",
			new:  "n := len(report.Of(Conflict)); n > 1000 {",
			in:   "integration/drift", tests: "TestConflictsAreExplained",
		},
		{
			name: "a missing binding is not shown", breaks: "a topology without its bindings has no drift",
			file: "rabbitmq/drift/compare.go", old: "if !c.there.bindings[", new: "if false && !c.there.bindings[",
			in: "integration/drift", tests: "TestDriftAfterDeletions",
		},
		{
			name:   "an export is written over",
			breaks: "a discard replaces the file that has the only copy of other letters",
			file:   "cmd/wmretry/internal/cli/dead_discard.go",
			old:    "os.O_WRONLY|os.O_CREATE|os.O_EXCL",
			new:    "os.O_WRONLY|os.O_CREATE",
			in:     "cmd/wmretry", tests: "TestDiscard",
		},
		{
			name:   "an app that does not consume is ready",
			breaks: "a deployment goes on although new instances get no messages",
			file:   "retry/health.go", old: "if !s.Consuming && (", new: "if false && (",
			in: "retry", tests: "TestReadiness",
		},
	}},
	{"Metrics and traces: outcomes are counted once, with bounded labels that have no text of a message", []mutation{
		{
			name:   "a held message is measured twice",
			breaks: "the durations of an outage count each held message twice",
			file:   "observe/events.go", old: "if e.Outcome == retry.Held {", new: "if false {",
			in: "observe", tests: "TestAHeldMessageIsMeasuredOnce",
		},
		{
			name:   "the text of an error is a label",
			breaks: "metrics have secrets, and as many series as there are texts",
			file:   "observe/events.go",
			old:    "return labelText(e.Rule, maxReason)",
			new:    "return labelText(e.Record.Reason, maxReason)",
			in:     "observe", tests: "TestNoTextOfAMessageIsALabel",
		},
		{
			name: "labels have no bound", breaks: "many topics or handlers fill the memory of the metrics server",
			file: "observe/instruments.go", old: "if len(t.all) >= t.most {", new: "if false {",
			in: "observe", tests: "TestLabelsAreBounded",
		},
	}},
}

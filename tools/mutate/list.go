package main

import (
	"embed"
	"fmt"
	"path"
	"slices"
	"strings"
)

// lists have a promise in each paragraph that begins with "# ", and then its mutations, each in a paragraph:
//
//	the name
//	what goes wrong for the user
//	the file
//	the names of the tests or subtests, or their folder and their names, if the folder is not that of the file
//	-the old text, in one or more lines
//	+the new text, if there is one
//
//go:embed *.txt
var lists embed.FS

// promises are all promises: those of docs/guarantees.md in the order of the page, then those of the other pages.
func promises() (all []promise, err error) {
	for _, name := range []string{"guarantees", "connects", "inputs", "outcomes", "letters", "operates", "others"} {
		text, err := lists.ReadFile(name + ".txt")
		if err != nil {
			return nil, err
		}
		for paragraph := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
			if promised, found := strings.CutPrefix(paragraph, "# "); found {
				all = append(all, promise{text: strings.ReplaceAll(promised, "\n# ", " ")})
				continue
			}
			m, err := parse(paragraph)
			if err != nil {
				return nil, fmt.Errorf("%s.txt: %w", name, err)
			}
			last := &all[len(all)-1]
			last.mutations = append(last.mutations, m)
		}
	}
	return all, nil
}

// simulated returns the mutations that the simulation finds, and why it does not find others, by their names.
// simulation.txt has the names of the first ones, a line each, and then paragraphs of others, each below a reason that
// begins with "# ".
func simulated(all []mutation) (found []mutation, reasons map[string]string, err error) {
	text, err := lists.ReadFile("simulation.txt")
	if err != nil {
		return nil, nil, err
	}
	byName := map[string]mutation{}
	for _, m := range all {
		byName[m.name] = m
	}
	reason, listed := "", map[string]bool{}
	reasons = map[string]string{}
	for line := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n") {
		if text, is := strings.CutPrefix(line, "# "); is || line == "" {
			reason = text
			continue
		}
		m, known := byName[line]
		switch {
		case !known:
			return nil, nil, fmt.Errorf("simulation.txt: there is no mutation %q", line)
		case listed[line]:
			return nil, nil, fmt.Errorf("simulation.txt has %q twice", line)
		case reason != "":
			reasons[line] = reason
		default:
			m.in, m.tests = simulation, "TestSeeds"
			found = append(found, m)
		}
		listed[line] = true
	}
	return found, reasons, nil
}

// ofRabbitMQ are folders whose code the simulation runs.
var ofRabbitMQ = []string{"internal/rabbitmq/", "internal/middleware/", "rabbitmq/topology/", "rabbitmq/publish/",
	"internal/gate/", "backoff/", "internal/options/", "internal/users/"}

// isSimulated reports whether a mutation must be in simulation.txt.
func (m mutation) isSimulated() bool {
	in := func(folder string) bool { return strings.HasPrefix(m.file, folder) }
	return slices.ContainsFunc(ofRabbitMQ, in) && !in("internal/rabbitmq/model/")
}

func parse(paragraph string) (m mutation, err error) {
	lines := strings.Split(paragraph, "\n")
	if len(lines) < 5 {
		return m, fmt.Errorf("%q has %d lines: it must have a name, what it breaks, a file, tests and an old text",
			lines[0], len(lines))
	}
	m = mutation{name: lines[0], breaks: lines[1], file: lines[2], in: path.Dir(lines[2]), tests: lines[3]}
	if in, tests, other := strings.Cut(m.tests, " "); other {
		m.in, m.tests = in, tests
	}
	var before, after []string
	for _, line := range lines[4:] {
		if old, is := strings.CutPrefix(line, "-"); is {
			before = append(before, old)
		} else if changed, is := strings.CutPrefix(line, "+"); is {
			after = append(after, changed)
		} else {
			return m, fmt.Errorf("%q: the line %q must begin with - or +", m.name, line)
		}
	}
	m.old, m.new = strings.Join(before, "\n"), strings.Join(after, "\n")
	return m, nil
}

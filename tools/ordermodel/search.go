package main

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
)

// limit is how many states of a variant are searched. The search of one that holds must end before it.
const limit = 2_000_000

// A step is a transition of the world: of an owner, of a key, about a message. Each of them may be absent (-1, none).
type step struct {
	action action
	owner  int8
	key    int8
	about  item
}

func (s step) String() string {
	text := names[s.action]
	if s.owner >= 0 {
		text = fmt.Sprintf("owner %d %s", s.owner+1, text)
	}
	if s.about != none {
		text += " " + s.about.String()
	}
	return text
}

// action is what happens in a step. Those from crashes on may also never happen: a world with no other step is at rest.
type action int8

const (
	publishes action = iota
	starts
	succeeds
	refusedByFence
	fails
	failsForGood
	delayEnds
	acks
	nacks
	copies
	confirmed
	letters
	skips
	forwards
	settles
	sendsAgain
	canceledIsGone
	zombieDies

	crashes
	deposed
	cancels
	timesOut
	workerRestarts
	refuses
	retried
	skippedByOperator
)

var names = [...]string{
	publishes:         "the publisher sends",
	starts:            "starts to handle",
	succeeds:          "handles with success",
	refusedByFence:    "ends: the fence refuses its effect of",
	fails:             "fails to handle",
	failsForGood:      "fails for good to handle",
	delayEnds:         "has waited for the delay of",
	acks:              "acks, and the broker has the ack of",
	nacks:             "nacks",
	copies:            "publishes to the tier a copy of",
	confirmed:         "gets the confirm of the copy, and acks",
	letters:           "publishes the dead letter of",
	skips:             "gets the confirm of the letter, and acks",
	forwards:          "the tier forwards",
	settles:           "the tier has the confirm of",
	sendsAgain:        "the tier sends again",
	canceledIsGone:    "has finished, and closes its channel",
	zombieDies:        "notices that it was deposed",
	crashes:           "crashes",
	deposed:           "is deposed without its notice",
	cancels:           "cancels its consumer",
	timesOut:          "has held its oldest message for the consumer timeout",
	workerRestarts:    "the dead-letter worker restarts",
	refuses:           "the queue refuses the copy of",
	retried:           "gets the command to retry",
	skippedByOperator: "gets the command to skip",
}

// A node of the search tree: how its state was first reached.
type node struct {
	parent int32
	step   step
}

// A breach is a run that breaks a property.
type breach struct{ property, run string }

type checker struct {
	v      variant
	seen   map[[2]uint64]struct{}
	nodes  []node
	broken *breach

	next      []world // the worlds that are one step further, and their nodes
	nextNodes []int32
	at        int32 // the node that is expanded
	step      step  // that is taken
	moved     bool  // the world that is expanded is not at rest
}

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func search(v variant) *checker {
	c := &checker{v: v, seen: map[[2]uint64]struct{}{}, nodes: []node{{parent: -1}}}
	w := world{may: v.may, published: int8(len(v.order)) - v.later}
	for _, i := range v.order[:w.published] {
		w.ready.push(i)
	}
	w.o[0].life = active
	c.handOut(&w)
	level, nodes := []world{w}, []int32{0}
	for len(level) > 0 && c.broken == nil && len(c.seen) < limit {
		c.next, c.nextNodes = nil, nil
		for i := range level {
			c.at = nodes[i]
			c.expand(&level[i])
		}
		level, nodes = c.next, c.nextNodes
	}
	return c
}

// result returns what variant.want is compared with.
func (c *checker) result() string {
	switch {
	case c.broken != nil:
		return "breaks " + c.broken.property
	case len(c.seen) >= limit:
		return "too large"
	}
	return holds
}

// do takes a step from w.
func (c *checker) do(w *world, s step, change func(*world)) {
	n := *w
	c.step = s
	change(&n)
	c.moved = c.moved || s.action < crashes
	c.handOut(&n)
	hash := [2]uint64{maphash.Comparable(seeds[0], n), maphash.Comparable(seeds[1], n)}
	if _, known := c.seen[hash]; known {
		return
	}
	c.seen[hash] = struct{}{}
	c.next, c.nextNodes = append(c.next, n), append(c.nextNodes, int32(len(c.nodes)))
	c.nodes = append(c.nodes, node{c.at, s})
}

// other takes a step that is not of an owner.
func (c *checker) other(w *world, a action, about item, change func(*world)) {
	c.do(w, step{a, -1, -1, about}, change)
}

// handOut brings the queue to rest: it sends what the prefetch permits in one go, as RabbitMQ's quorum queues do.
func (c *checker) handOut(w *world) {
	for w.unacked.n < c.v.prefetch[w.active] && w.returned.n+w.ready.n > 0 {
		from := &w.ready
		if w.returned.n > 0 {
			from = &w.returned
		}
		i := from.remove(0)
		w.unacked.push(i)
		w.o[w.active].q[i.key()].push(i)
	}
}

// breaks records the first run that breaks a property. The last step of a run at rest is that of the node.
func (c *checker) breaks(property string, atRest bool, why string, args ...any) {
	if c.broken != nil {
		return
	}
	var lines []string
	for at := c.at; at > 0; at = c.nodes[at].parent {
		lines = append(lines, "    "+c.nodes[at].step.String())
	}
	slices.Reverse(lines)
	if !atRest {
		lines = append(lines, "    "+c.step.String())
	}
	lines = append(lines, "    "+property+": "+fmt.Sprintf(why, args...), "")
	c.broken = &breach{property, strings.Join(lines, "\n")}
}

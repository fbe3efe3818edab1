package doctor

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/internal/each"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/internal/shell"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// newest is the newest version of RabbitMQ that the library is tested on. Only it has community support.
const newest, newestUntil = "4.3", "2026-11-30"

// supportOf reports whether a version has support at a time, and describes it.
func supportOf(version string, at time.Time) (has bool, text string) {
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
		return false, "its version is not known"
	}
	switch of := fmt.Sprintf("%d.%d", major, minor); {
	case of == newest && at.UTC().Format(time.DateOnly) <= newestUntil:
		return true, "community support until " + newestUntil
	case of == newest:
		return false, "community support ended on " + newestUntil
	case major > 4 || major == 4 && minor > 3:
		return false, "watermill-retry is not tested on it"
	case major < 3 || major == 3 && minor < 10:
		return false, "watermill-retry needs 3.10 or later"
	}
	return false, "community support has ended"
}

func support(s *Snapshot, found sink) {
	if has, text := supportOf(s.About.Version, s.At); !has {
		found("RabbitMQ "+s.About.Version, "support", "{why}", text)
	}
}

// stranger is the name of no queue. A pattern that permits it permits all.
const stranger = "no queue of this name, 9c1f07e2"

func permissions(s *Snapshot, found sink) {
	if s.About.Permissions == nil {
		return
	}
	p := *s.About.Permissions
	may := func(pattern, name string) bool {
		if pattern == "" { // it permits nothing
			return false
		}
		compiled, err := regexp.Compile(pattern) // RabbitMQ's patterns can have more
		return err != nil && name != stranger || err == nil && compiled.MatchString(name)
	}
	export := func(w deadletter.Wanted) string {
		described := []string{"--schedule", strings.Trim(fmt.Sprint(w.Topology.Tiers), "[]")}
		if n := w.Topology.Partitions; n > 0 {
			described = []string{"--partitions", strconv.Itoa(n)}
		}
		return s.command(slices.Concat([]string{"topology", "export", "--queue", w.Queue.Name}, described,
			[]string{"--permissions"})...)
	}
	wanted := s.wanted()
	if may(p.Configure, stranger) || may(p.Write, stranger) || may(p.Read, stranger) {
		command := ""
		if len(wanted) > 0 {
			command = export(wanted[0])
		}
		found(s.About.User, "permits all", "{configure}", strconv.Quote(p.Configure), "{write}", strconv.Quote(p.Write),
			"{read}", strconv.Quote(p.Read), "{command}", command)
	}
	for _, w := range wanted {
		var lacks []string
		t := topology.New(w.Topology, w.Queue)
		names := append(each.Of(append(t.Queues, t.WorkQueue), func(q topology.Queue) string { return q.Name }),
			each.Of(t.Exchanges, func(e topology.Exchange) string { return e.Name })...)
		need := func(verb, pattern string, names ...string) {
			for _, name := range names {
				if !may(pattern, name) {
					lacks = append(lacks, verb+" on "+name)
				}
			}
		}
		switch {
		case slices.ContainsFunc(names, func(name string) bool { return may(p.Configure, name) }): // it declares
			need("configure", p.Configure, names...)
			need("write", p.Write, names...)
			need("read", p.Read, names...)
		case may(p.Read, w.Queue.Name) && !may(p.Read, stranger): // it consumes, or redrives
			need("write", p.Write, string(s.Prefix))
		default:
			need("read", p.Read, t.DeadLetterQueue())
		}
		if n := len(lacks); n > 0 {
			found(s.About.User, "lacks permissions", "{queue}", w.Queue.Name, "{lacks}",
				strings.Join(lacks[:min(n, 3)], ", "), "{number}", strconv.Itoa(n), "{command}", export(w))
		}
	}
}

// mostApart is more seconds than the clocks of synchronised hosts differ, and than a slow answer adds.
const mostApart = 5

func clocks(s *Snapshot, found sink) {
	broker := App{URL: "the management API", Ahead: s.About.Ahead}
	for _, app := range append([]App{broker}, s.Apps...) {
		if ahead := app.Ahead; ahead != nil && max(*ahead, -*ahead) > mostApart {
			found(app.URL, "clock", "{ahead}", fmt.Sprintf("%+d", *ahead))
		}
	}
}

func unprotected(s *Snapshot, found sink) {
	for _, d := range s.Drift {
		if d.Argument == "x-dead-letter-exchange" && d.Have == "none" && s.Inventory.Queues[d.Name].Type == "quorum" {
			found(d.Name, "unprotected", "{reason}", d.Reason, "{advice}", d.Advice)
		}
		if d.Argument == queuearg.QueueType && d.Have == "stream" {
			found(d.Name, "stream", "{reason}", d.Reason, "{advice}", d.Advice)
		}
	}
}

// policies finds policies that overrule arguments. drift only notes those that a deployment can want.
func policies(s *Snapshot, found sink) {
	for _, d := range s.Drift {
		key := strings.TrimPrefix(d.Argument, "x-")
		q := s.Inventory.Queues[d.Name]
		set := q.Effective[key] != nil && key == d.Argument
		retention := fmt.Sprintf("by the policy %q", "dead letters of "+strings.TrimSuffix(d.Name, ".dead"))
		if set && !strings.HasSuffix(d.Have, retention) { // docs/scale.md#retention names it so
			advice := cmp.Or(d.Advice, "where this is not wanted, make the pattern of the policy leave out this queue")
			found(d.Name, "policy", "{argument}", d.Argument, "{have}", d.Have, "{reason}", d.Reason, "{advice}", advice,
				"{operator policies}", s.operatorPolicies(q))
		}
	}
}

// operatorPolicies is the command that shows the operator policies of a queue, where it has one: list_policies leaves
// it out.
func (s *Snapshot) operatorPolicies(q management.Queue) string {
	if q.Operator == "" {
		return ""
	}
	return "rabbitmqctl list_operator_policies -p " + shell.Word(s.Vhost)
}

// loops finds queues that delay messages and drop the oldest at a limit. They never drop a delayed one: with more of
// these than the limit, such a queue loops without an end.
func loops(s *Snapshot, found sink) {
	for _, name := range s.own() {
		q := s.Inventory.Queues[name]
		retry, delays := q.Setting("delayed-retry-type").(string)
		delays = delays && retry != "disabled" && workqueue.Delays(s.About.Version)
		limited := q.Setting("max-length") != nil || q.Setting("max-length-bytes") != nil
		if q.Type == "quorum" && limited && q.Setting("overflow") != queuearg.RejectPublish && (delays || q.Delayed > 0) {
			found(name, "loop", "{delayed}", strconv.Itoa(q.Delayed), "{operator policies}", s.operatorPolicies(q))
		}
	}
}

func limits(s *Snapshot, found sink) {
	for _, name := range s.letters() {
		q := s.Inventory.Queues[name]
		argument, limit := q.Arguments["x-delivery-limit"], workqueue.DeliveryLimit(s.About.Version)
		if n, is := argument.(int64); is {
			limit = workqueue.DeliveryLimit(s.About.Version, n)
		}
		if q.Type == "quorum" && limit < workqueue.FarLimit {
			found(name, "limit", "{limit}", fmt.Sprint(cmp.Or(argument, any(limit))), "{discard}",
				s.command("dead", "discard", strings.TrimSuffix(name, ".dead"), "--export", "letters.jsonl"))
		}
	}
}

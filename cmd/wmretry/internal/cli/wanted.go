package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strconv"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/each"
	"github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/definitions"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// declaration is what apps declare for some work queues: the fields of topology.Config, those of Config that
// make more tiers, and the queues. It is an entry of the file of --file.
type declaration struct {
	Queues         []string  `json:"queues"`
	QueueArguments arguments `json:"queue_arguments"` // as the app itself declares the work queues

	Schedule   schedule `json:"schedule"`
	Jitter     float64  `json:"jitter"`
	ExtraTiers schedule `json:"extra_tiers"` // and the delays of Rules

	Prefix              string                 `json:"prefix"`
	TierGroup           string                 `json:"tier_group"`
	Partitions          int                    `json:"partitions"`
	Prefetch            int                    `json:"prefetch"`
	QueueType           topology.QueueType     `json:"queue_type"`
	WorkQueueMode       topology.WorkQueueMode `json:"work_queue_mode"`
	DeadLetters         retention              `json:"dead_letters"`
	TierArguments       arguments              `json:"tier_arguments"`
	DeadLetterArguments arguments              `json:"dead_letter_arguments"`
}

type retention struct {
	MaxLength int      `json:"max_length"`
	MaxAge    duration `json:"max_age"`
}

// wanted returns what each work queue needs.
func (d declaration) wanted(prefix string) []deadletter.Wanted {
	config := topology.Config{
		Prefix: cmp.Or(d.Prefix, prefix), TierGroup: d.TierGroup, QueueType: d.QueueType, Partitions: d.Partitions,
		Prefetch: d.Prefetch, WorkQueueMode: d.WorkQueueMode,
		DeadLetters: topology.Retention{MaxLength: d.DeadLetters.MaxLength,
			MaxAge: time.Duration(d.DeadLetters.MaxAge)},
		TierArguments: amqp091.Table(d.TierArguments), DeadLetterArguments: amqp091.Table(d.DeadLetterArguments),
	}
	policy := retry.Policy{
		Schedule: backoff.Schedule(d.Schedule), Jitter: d.Jitter, ExtraTiers: d.ExtraTiers, TierGroup: d.TierGroup,
	}
	own := amqp091.Table(d.QueueArguments)
	if config.Partitions == 0 {
		config.Tiers = middleware.Tiers(policy, true)
	} else {
		own = amqp091.Table{}
		maps.Copy(own, d.QueueArguments)
		own["x-single-active-consumer"] = true // as the app declares it
	}
	return each.Of(d.Queues, func(queue string) deadletter.Wanted {
		return deadletter.Wanted{Topology: config, Queue: topology.Queue{Name: queue, Durable: true, Arguments: own}}
	})
}

// schedule is a backoff.Schedule whose delays may be separated by commas, too.
type schedule backoff.Schedule

const scheduleHelp = `delays such as "1s 5s 25s*3 10m" (commas may separate them)`

func (s *schedule) UnmarshalText(text []byte) error {
	parsed, err := backoff.ParseSchedule(strings.ReplaceAll(string(text), ",", " "))
	*s = schedule(parsed)
	return err
}

// duration is a time.Duration that is written as text, and may be in days.
type duration time.Duration

func (d *duration) UnmarshalText(text []byte) error { return d.Set(string(text)) }

// Set implements pflag.Value.
func (d *duration) Set(text string) error {
	parsed, err := time.ParseDuration(text)
	if days, isDays := strings.CutSuffix(text, "d"); isDays {
		var n float64
		if n, err = strconv.ParseFloat(days, 64); err == nil && !(n < 100_000) { // also NaN
			err = strconv.ErrRange
		}
		parsed = time.Duration(n * 24 * float64(time.Hour))
	}
	if err != nil {
		return fmt.Errorf("%q is not %s", text, kinds["duration"])
	}
	*d = duration(parsed)
	return nil
}

// String implements pflag.Value.
func (d *duration) String() string { return only(*d != 0, time.Duration(*d).String()) }

// Type implements pflag.Value.
func (d *duration) Type() string { return "duration" }

// arguments are those of a queue. Numbers are int64.
type arguments amqp091.Table

func (a *arguments) UnmarshalJSON(text []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var raw map[string]any
	if err := decoder.Decode(&raw); err != nil {
		return err
	}
	*a = arguments{}
	for key, value := range raw {
		if number, is := value.(json.Number); is {
			whole, err := number.Int64()
			if err != nil {
				return fmt.Errorf("%s is %s: it must be a whole number, a text or true or false", key, number)
			}
			value = whole
		}
		(*a)[key] = value
	}
	return nil
}

// defaultPrefetch is that of a handler with Order.Partitions.
const defaultPrefetch = 512

// wantedFlags describe what apps declare: the schedule or the partitions of work queues, or a file for everything else.
type wantedFlags struct {
	file, schedule       string
	queues               []string
	partitions, prefetch int
}

// with returns these flags and those of one command.
func (f *wantedFlags) with(own variables) variables {
	f.prefetch = defaultPrefetch
	all := variables{"file": &f.file, "schedule": &f.schedule, "queue": &f.queues,
		"partitions": &f.partitions, "prefetch": &f.prefetch}
	maps.Copy(all, own)
	return all
}

// given reports whether any flag is set.
func (f *wantedFlags) given() bool { return f.file != "" || f.described() }

// described reports whether the flags other than --file describe anything.
func (f *wantedFlags) described() bool {
	return f.schedule != "" || f.partitions != 0 || f.prefetch != defaultPrefetch || len(f.queues) > 0
}

// wanted returns what the flags or the file describe.
func (f *wantedFlags) wanted(prefix string) ([]deadletter.Wanted, error) {
	declarations, err := f.declarations()
	if err != nil {
		return nil, err
	}
	var all []deadletter.Wanted
	for _, d := range declarations {
		all = append(all, d.wanted(prefix)...)
	}
	if _, err := definitions.Merge(topologiesOf(all)...); err != nil {
		return nil, exit(codeUsage, err)
	}
	return all, nil
}

func topologiesOf(wanted []deadletter.Wanted) []topology.Topology {
	return each.Of(wanted, func(w deadletter.Wanted) topology.Topology { return topology.New(w.Topology, w.Queue) })
}

func (f *wantedFlags) declarations() ([]declaration, error) {
	switch {
	case f.file != "" && f.described():
		return nil, usage("--file and --queue, --schedule, --partitions or --prefetch are both set: the file has " +
			"everything, so leave the others out or write them into the file")
	case f.file != "":
		return readDeclarations(f.file)
	case len(f.queues) == 0:
		return nil, usage("no work queue is named: use --queue orders (it may be repeated), or --file")
	case f.schedule == "" && f.partitions == 0:
		return nil, usage("--schedule is missing: %s", scheduleHelp)
	}
	if f.partitions == 0 && f.prefetch != defaultPrefetch {
		return nil, usage("--prefetch is %d without --partitions: it is the Prefetch of handlers with partitions. Add "+
			"--partitions, or leave it out", f.prefetch)
	}
	d := declaration{Queues: f.queues, Partitions: f.partitions, Prefetch: only(f.partitions != 0, f.prefetch)}
	if f.schedule != "" {
		if err := d.Schedule.UnmarshalText([]byte(f.schedule)); err != nil {
			return nil, usage("--schedule: %w", err)
		}
	}
	return []declaration{d}, nil
}

// readDeclarations reads a file with one declaration or a list of them.
func readDeclarations(name string) ([]declaration, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, usage("--file: %w", err)
	}
	decode := func(into any) error {
		decoder := json.NewDecoder(bytes.NewReader(content))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(into); err != nil {
			return err
		}
		if _, err := decoder.Token(); err != io.EOF {
			return errors.New("there is more behind the end of the JSON: make it one list")
		}
		return nil
	}
	var all []declaration
	if text := bytes.TrimSpace(content); len(text) > 0 && text[0] == '[' {
		err = decode(&all)
	} else {
		all = make([]declaration, 1)
		err = decode(&all[0])
	}
	if err != nil {
		return nil,
			usage("--file: %s cannot be read: %w; `wmretry topology --help` shows the fields", safe(name), err)
	}
	for i, d := range all {
		if len(d.Queues) == 0 || len(d.Schedule) == 0 && d.Partitions == 0 {
			return nil, usage("--file: entry %d of %s needs \"queues\", and \"schedule\" or \"partitions\"", i+1, safe(name))
		}
	}
	if len(all) == 0 {
		return nil, usage("--file: %s has no entry", safe(name))
	}
	return all, nil
}

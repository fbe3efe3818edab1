package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/pprof"
	"slices"
	"strings"
	"time"
)

// brokerBench is what is measured against the broker at uri.
type brokerBench struct {
	uri      string
	version  string
	rounds   int
	messages int            // of a storm
	only     *regexp.Regexp // names of the sides to measure; nil: all
	profiles string         // a folder for a processor profile of each side; empty: none
	outage   time.Duration
	process  int // of the broker on this machine; 0: not known
}

// A contest measures sides in turns, so that the load of a shared machine affects all of them alike.
type contest struct {
	title  string
	sides  []side
	app    func(side) *app
	claims []ratio
}

// A ratio is a claim about the rates of two sides within the same round.
type ratio struct {
	claim         string
	ours, against side
	least         float64
}

var (
	ownSubscriber = library("library, own subscriber, 1 handler of 256", 1, inFlight)
	overStock     = library("library, watermill-amqp, 16 handlers", workers, 0)
	handPool16    = watermillByHand("Watermill by hand, 16 handlers, pool 16", workers, 16)
	handPool0     = watermillByHand("Watermill by hand, 16 handlers, pool 0", workers, 0)
)

func (b brokerBench) storm() contest {
	return contest{
		title: fmt.Sprintf("storm of %d messages of %d bytes: all fail once, 1%% are dead-lettered after %d tries, tier of %v",
			b.messages, payloadBytes, tries, tier),
		sides: []side{handWaiting, handPipelined, handPool16, handPool0, native, overStock, ownSubscriber},
		app:   func(side) *app { return newApp(b.messages, true, 0) },
		claims: []ratio{
			{"storm_one_handler", ownSubscriber, handPipelined, 0.85},
			{"storm_16_handlers", overStock, handPool16, 1},
			{"storm_16_pool0", overStock, handPool0, 2.5},
		},
	}
}

// busy is a contest of handlers that succeed and take 5 ms.
func (b brokerBench) busy() contest {
	concurrent := library("library, own subscriber, 1 handler of 16", 1, workers)
	stock := library("library, watermill-amqp, 1 handler", 1, 0)
	const work = 5 * time.Millisecond
	return contest{
		title: fmt.Sprintf("handlers that succeed and take %v", work),
		sides: []side{concurrent, stock},
		app: func(s side) *app {
			messages := max(b.messages/2, workers)
			if s.name == stock.name {
				messages /= workers
			}
			return newApp(messages, false, work)
		},
		claims: []ratio{{"success_5ms", concurrent, stock, 12}},
	}
}

// idle is a contest of handlers that succeed and take no time.
func (b brokerBench) idle() contest {
	return contest{
		title:  fmt.Sprintf("handlers that succeed and take no time, %d messages in flight", inFlight),
		sides:  []side{handConsumer, ownSubscriber},
		app:    func(side) *app { return newApp(2*b.messages, false, 0) },
		claims: []ratio{{"success_0ms", ownSubscriber, handConsumer, 0.85}},
	}
}

// measureBroker measures what users would write by hand, and this library.
func (b brokerBench) measure() (claims []string, err error) {
	if b.version, err = brokerVersion(b.uri); err != nil {
		return nil, err
	}
	for _, c := range []contest{b.storm(), b.watched(), b.busy(), b.idle(), b.tierFull(), b.crowd()} {
		made, err := b.run(c)
		if err != nil {
			return nil, err
		}
		claims = append(claims, made...)
	}
	if b.only == nil || b.only.MatchString(jitterName) {
		made, err := measureJitter(b.uri, b.rounds)
		if err != nil {
			return nil, err
		}
		claims = append(claims, made...)
	}
	if b.only != nil && !b.only.MatchString(outageName) {
		return claims, nil
	}
	made, err := outage{b.uri, b.messages, b.outage}.measure()
	return append(claims, made...), err
}

func (b brokerBench) run(c contest) ([]string, error) {
	var sides []side
	for _, s := range c.sides {
		switch {
		case b.only != nil && !b.only.MatchString(s.name):
		case s.since != "" && !atLeast(b.version, s.since):
			fmt.Printf("\n%s was not run: it needs RabbitMQ %s, the broker is %s\n", s.name, s.since, b.version)
		default:
			sides = append(sides, s)
		}
	}
	if len(sides) == 0 {
		return nil, nil
	}
	rates, cpus, brokers := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
	for round := range b.rounds {
		for i := range sides {
			s := sides[(i+round)%len(sides)] // another side is first in each round
			r, err := b.profiled(s, c.app(s))
			if err != nil {
				return nil, err
			}
			rates[s.name], cpus[s.name] = append(rates[s.name], r.rate), append(cpus[s.name], r.cpu)
			brokers[s.name] = append(brokers[s.name], r.broker)
		}
	}
	fmt.Printf("\n%s; RabbitMQ %s, quorum queues, %d rounds\n\n", c.title, b.version, b.rounds)
	fmt.Printf("%-42s %32s %24s %24s\n", "side", "deliveries/s: median (min-max)", "own µs per delivery", "broker's µs per delivery")
	for _, s := range sides {
		own := rates[s.name]
		broker := "-"
		if b.process != 0 {
			broker = fmt.Sprintf("%.0f", median(brokers[s.name]))
		}
		fmt.Printf("%-42s %14.0f (%6.0f-%6.0f) %24.0f %24s\n", s.name, median(own), slices.Min(own), slices.Max(own), median(cpus[s.name]), broker)
	}
	var claims []string
	for _, r := range c.claims {
		ours, against := rates[r.ours.name], rates[r.against.name]
		if len(ours) == 0 || len(against) == 0 {
			continue
		}
		ratios := make([]float64, b.rounds)
		for round := range ratios {
			ratios[round] = ours[round] / against[round]
		}
		fmt.Printf("%s: %.0f/s against %.0f/s, ratio %.2f (%.2f-%.2f)\n", r.claim, median(ours), median(against),
			median(ratios), slices.Min(ratios), slices.Max(ratios))
		claims = append(claims, claimAtLeast(r.claim, median(ratios), r.least))
	}
	return claims, nil
}

// profiled measures a side, with a processor profile of its own where that is wanted.
func (b brokerBench) profiled(s side, a *app) (result, error) {
	if b.profiles == "" {
		return s.measure(b.uri, b.process, a)
	}
	name := strings.Map(func(r rune) rune {
		if r == ' ' || r == ',' || r == '\'' {
			return '_'
		}
		return r
	}, s.name)
	file, err := os.Create(filepath.Join(b.profiles, fmt.Sprintf("%s-fails=%v.pprof", name, a.fails)))
	if err != nil {
		return result{}, err
	}
	defer func() { _ = file.Close() }()
	a.profile = func() error { return pprof.StartCPUProfile(file) }
	defer pprof.StopCPUProfile()
	return s.measure(b.uri, b.process, a)
}

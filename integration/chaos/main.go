// Command chaos disturbs a running app under load with every fault, on every broker, and counts every message by its
// identity: published = processed + dead-lettered + still waiting. It prints one line for each fault, and fails on
// any loss.
//
//	chaos [-brokers 4.0=amqp://...,4.3=amqp://...] [-tool command] [-cluster 4.3] [-faults regexp] [-short]
//
// The rows of an order have three processes that keep the order of keys, and count what came in another one:
// inversions, which an older message followed, and gaps, in which one is missing. Both must be 0. Rewinds are not
// counted among them: a message that comes once more, with all that follow it.
//
// Without -brokers it takes AMQP_URL and AMQP_MANAGEMENT_URL, and the commands BROKER_CTL, BROKER_KILL and
// BROKER_START. The tool (verbs: cluster, ctl, kill, start, down) controls the brokers in -brokers.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/tieredretry/watermill-retry/tools/child"
)

func main() {
	child.Main(roles)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	brokers := flag.String("brokers", "", "name=url,...; AMQP_URL if empty")
	tool := flag.String("tool", "", "the command that kills, starts and controls the brokers by name")
	cluster := flag.String("cluster", "", "version of the three-node cluster for the faults that need one (with -tool)")
	messages := flag.Int("messages", 1400, "messages per row")
	only := flag.String("faults", "", "regular expression of the faults to run; all if empty")
	short := flag.Bool("short", false, "shorter faults")
	keys := flag.Int("keys", 1000, "keys per row of an order")
	each := flag.Int("each", 100, "messages of each key")
	flag.Parse()

	s := suite{options: Options{Messages: *messages, Short: *short, Keys: *keys, Each: *each}, tool: *tool,
		asked: *only != ""}
	var err error
	if s.faults, err = choose(*only); err == nil {
		err = s.all(ctx, *brokers, *cluster)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
	total, faulty := Total(s.rows)
	fmt.Printf("\n%s\n", total)
	if len(faulty) > 0 || len(s.rows) == 0 {
		fmt.Printf("not fine: %s\n", strings.Join(faulty, "; "))
		os.Exit(1)
	}
}

func choose(only string) ([]Fault, error) {
	in, err := regexp.Compile(only)
	if err != nil {
		return nil, err
	}
	chosen := slices.DeleteFunc(All(), func(f Fault) bool { return !in.MatchString(f.Name) })
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no fault matches %q", only)
	}
	return chosen, nil
}

type suite struct {
	options Options
	tool    string
	asked   bool // the flag -faults names the faults: none may be left out for want of a cluster
	faults  []Fault
	mu      sync.Mutex
	rows    []Row
}

// all runs the single nodes in parallel, and then the cluster: two cores are not enough for six nodes.
func (s *suite) all(ctx context.Context, list, cluster string) error {
	brokers, err := s.brokers(list)
	if err != nil {
		return err
	}
	clustered := slices.DeleteFunc(slices.Clone(s.faults), func(f Fault) bool { return !f.Clustered() })
	single := slices.DeleteFunc(slices.Clone(s.faults), Fault.Clustered)
	var workers sync.WaitGroup
	for _, b := range brokers {
		workers.Go(func() { s.worker(ctx, b, single) })
	}
	workers.Wait()
	if len(clustered) == 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	if cluster == "" || s.tool == "" {
		for _, f := range clustered {
			if s.asked {
				s.note(Row{Fault: f.Name, Broker: "none", NotRun: "needs a cluster: -tool and -cluster"})
				continue
			}
			fmt.Printf("left out: fault=%s needs a cluster: -tool and -cluster\n", f.Name)
		}
		return nil
	}
	b, err := s.cluster(cluster)
	if err != nil {
		return err
	}
	defer func() {
		for i := range 3 {
			_ = s.run("down", fmt.Sprintf("%s-%d", cluster, i+1)).Run()
		}
	}()
	s.worker(ctx, b, clustered)
	return ctx.Err()
}

func (s *suite) brokers(list string) ([]Broker, error) {
	if list == "" {
		b := FromEnvironment()
		if b.URL == "" {
			return nil, fmt.Errorf("-brokers and AMQP_URL are empty: set one of them")
		}
		return []Broker{b}, nil
	}
	var all []Broker
	for entry := range strings.SplitSeq(list, ",") {
		name, url, ok := strings.Cut(entry, "=")
		if !ok {
			return nil, fmt.Errorf("-brokers: an entry does not have the form name=url")
		}
		all = append(all, s.equip(Broker{Name: name, URL: url}))
	}
	return all, nil
}

func (s *suite) equip(b Broker) Broker {
	if s.tool != "" {
		b.Ctl, b.Kill, b.Start = s.tool+" ctl "+b.Name, s.tool+" kill "+b.Name, s.tool+" start "+b.Name
	}
	return b
}

// run prepares a verb of the tool, which may be a command of several words.
func (s *suite) run(verb, name string) *exec.Cmd {
	words := append(strings.Fields(s.tool), verb, name)
	return exec.Command(words[0], words[1:]...)
}

// cluster starts a cluster. The fault kills its first node.
func (s *suite) cluster(version string) (Broker, error) {
	var b Broker
	process := s.run("cluster", version)
	process.Stderr = os.Stderr
	output, err := process.Output()
	if err != nil {
		return b, fmt.Errorf("cannot start the cluster: %w", err)
	}
	for line := range strings.Lines(string(output)) {
		name, url, _ := strings.Cut(strings.TrimSpace(line), "=")
		if b.URL == "" {
			b.Name, b.URL = name, url
		} else {
			b.Survivors = append(b.Survivors, url)
		}
	}
	return s.equip(b), nil
}

func (s *suite) worker(ctx context.Context, b Broker, faults []Fault) {
	for _, fault := range faults {
		if ctx.Err() != nil {
			return
		}
		if why := fault.LeftOut(b); why != "" {
			fmt.Printf("left out: fault=%s broker=%s %s\n", fault.Name, b.Name, why)
			continue
		}
		s.note(Run(ctx, fault, b, s.options))
	}
}

func (s *suite) note(row Row) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows = append(s.rows, row)
	fmt.Println(row)
}

// Command scalebench measures what retries cost where there are many messages, work queues or instances: one question after the other,
// on each broker. It prints a line for each claim and a table in Markdown for each question, and draws charts.
//
//	scalebench [-brokers uri,...] [-only regexp] [-messages 1000000] [-charts folder] [-page file] [-short]
//
// The default broker is AMQP_URL. Each needs its management API: at AMQP_MANAGEMENT_URL, or at the AMQP port plus 10,000. Every question
// has virtual hosts of its own, which are deleted. A lost or early message is an error. A missed claim is not.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"
)

// settings are what a run measures.
type settings struct {
	messages int  // that wait at the same time
	all      bool // the rows that take many minutes, too
	native   bool // the broker's own delayed retry, too
	rounds   int  // of the comparisons that alternate
	short    bool // everything small: the figures mean nothing
}

// A question is measured on one broker. It adds its figures to the report.
type question struct {
	name    string
	measure func(*server, settings, *report) error
}

var questions = []question{
	{"lateness", measureLateness},
	{"worker", measureWorker},
	{"million", measureMillion},
	{"growth", measureGrowth},
	{"start", measureStart},
	{"crowd", measureCrowd},
	{"cost", measureCost},
}

func main() {
	var s settings
	brokers := flag.String("brokers", "", "addresses of the brokers, separated by commas, each with an optional NAME= before it; AMQP_URL if empty")
	only := flag.String("only", "", "regular expression of the questions: lateness, worker, million, growth, start, crowd, cost; all if empty")
	folder := flag.String("charts", "", "folder for the charts; none if empty")
	page := flag.String("page", "", "a page in Markdown whose figures are replaced, where all questions are measured; none if empty")
	flag.IntVar(&s.messages, "messages", 1_000_000, "messages that wait at the same time")
	flag.BoolVar(&s.all, "all", false, "measure 1,000 work queues with tiers for each queue too: it takes many minutes")
	flag.BoolVar(&s.native, "native", false, "measure the lateness of RabbitMQ's own delayed retry too, on 4.3 and later")
	flag.IntVar(&s.rounds, "rounds", 20, "rounds of the comparisons that alternate")
	flag.BoolVar(&s.short, "short", false, "everything small, within about a minute: only lost and early messages count")
	flag.Parse()
	if s.short || *only != "" {
		*page = ""
	}
	if s.short {
		s.messages, s.rounds = min(s.messages, 20_000), min(s.rounds, 2)
	}
	if err := run(*brokers, *only, *folder, *page, s); err != nil {
		fmt.Fprintln(os.Stderr, "scalebench:", err)
		os.Exit(1)
	}
}

func run(brokers, only, folder, page string, s settings) error {
	chosen, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	if brokers == "" {
		brokers = os.Getenv("AMQP_URL")
	}
	if brokers == "" {
		return errors.New("AMQP_URL is not set, and there is no -brokers")
	}
	var r report
	for address := range strings.SplitSeq(brokers, ",") {
		server, err := newServer(address, brokers == os.Getenv("AMQP_URL"))
		if err == nil {
			err = measure(server, chosen, s, &r)
		}
		if err != nil {
			return err
		}
	}
	fmt.Printf("\n%s\n", r.markdown())
	for _, c := range r.claims {
		fmt.Println(c)
	}
	if folder != "" {
		err = r.draw(folder)
	}
	if page != "" {
		err = errors.Join(err, r.writeInto(page))
	}
	return err
}

// measure asks one broker.
func measure(server *server, chosen *regexp.Regexp, s settings, r *report) error {
	r.versions = append(r.versions, server.version)
	for _, q := range questions {
		if !chosen.MatchString(q.name) {
			continue
		}
		began := time.Now()
		fmt.Printf("\n== %s, RabbitMQ %s\n", q.name, server.version)
		if err := q.measure(server, s, r); err != nil {
			return fmt.Errorf("%s, RabbitMQ %s: %w", q.name, server.version, err)
		}
		fmt.Printf("took %v\n", time.Since(began).Round(time.Second))
	}
	return nil
}

// Command bench measures the claims about RabbitMQ, of tools/claims, on each broker, one question after the other.
// It prints a line for each figure, and the table of the claims.
//
//	bench [-brokers [NAME=]uri,...] [-only regexp] [-short] [-rounds n] [-profile folder]
//	bench -cluster NODE=uri,NODE=uri,NODE=uri -tool command
//
// The default broker is AMQP_URL. Each needs its management API: at AMQP_MANAGEMENT_URL, or at the AMQP port plus
// 10,000. Every measurement has a virtual host of its own, which is deleted. A lost or early message is an error. A
// missed claim is not. With -profile, each side of a contest has a CPU profile of its last round in the folder, as
// 3.10-storm-amqp091-go-pipelined.pprof, for go tool pprof. With -cluster it restarts the nodes of a cluster, with the
// verbs ctl and start of the command (CONTRIBUTING.md).
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/tools/claims"
)

// A bench is a run on one broker.
type bench struct {
	*server
	claims.Program
	question string // what is measured, as a question
}

// A question is measured on one broker. It adds its claims to the report.
type question struct {
	name    string
	measure func(*bench) error
}

var questions = []question{
	{"lateness", measureLateness},
	{"storm", measureStorm},
	{"redrive", measureRedrive},
	{"worker", measureWorker},
	{"million", measureMillion},
	{"cost", measureCost},
	{"order", measureOrder},
}

func names() (all []string) {
	for _, q := range questions {
		all = append(all, q.name)
	}
	return all
}

// claim adds a figure to the claim of a name.
func (b *bench) claim(name string, value float64) { b.Claim(name, b.series(), value) }

// ratio claims the ratio of two sides.
func (b *bench) ratio(name string, ours, theirs []float64) { b.Ratio(name, b.series(), ours, theirs) }

// turns measures sides in turns, each time in a new virtual host.
func (b *bench) turns(
	title string, rounds int, sides []string, measure func(side int, uri string) (float64, error),
) (figures [][]float64, err error) {
	return b.Compare(title, rounds, sides, func(i int) (figure float64, err error) {
		err = b.in(b.question, func(uri string) error {
			figure, err = measure(i, uri)
			return err
		})
		return figure, err
	})
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func main() {
	var b bench
	brokers := flag.String("brokers", os.Getenv("AMQP_URL"),
		"addresses of brokers, separated by commas, each with an optional NAME=")
	cluster := flag.String("cluster", "", "NODE=address of the nodes of a cluster to restart, separated by commas")
	tool := flag.String("tool", "", "the command that restarts the nodes of the cluster")
	b.Main("Claims", names(), func(chosen []string) error {
		if *cluster != "" {
			return measureRestart(&b, *cluster, *tool)
		}
		return b.run(*brokers, chosen)
	})
}

func (b *bench) run(brokers string, chosen []string) (err error) {
	if brokers == "" {
		return errors.New("AMQP_URL is not set, and there is no -brokers")
	}
	for address := range strings.SplitSeq(brokers, ",") {
		if b.server, err = newServer(address); err != nil {
			return err
		}
		for _, q := range questions {
			if !slices.Contains(chosen, q.name) {
				continue
			}
			b.question = q.name
			title := q.name + ", RabbitMQ " + b.version
			fmt.Printf("\n== %s\n", title)
			if err := claims.Ask(title, func() error { return q.measure(b) }); err != nil {
				return err
			}
		}
	}
	return nil
}

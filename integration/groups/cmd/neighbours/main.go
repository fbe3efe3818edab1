// Command neighbours measures how late the retries of good work queues are, while another work queue of their group does not take its
// messages. It prints a line for each claim. A lost message is an error, a missed claim is not.
//
//	neighbours [-brokers [NAME=]uri,...] [-messages 1000] [-relief]
//	neighbours -cluster NODE=uri,NODE=uri,NODE=uri -tool command [-rate 60] [-own]
//
// The default broker is AMQP_URL. With -cluster, the nodes of a cluster are restarted one after the other, with the verbs ctl and start of
// the command (CONTRIBUTING.md).
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

type settings struct {
	messages int  // good ones, and as many bad ones
	relief   bool // wait until the full work queue has got all of its messages, which takes six minutes
	own      bool // while the nodes of a cluster restart, each work queue has tiers of its own, to compare
	rate     int  // messages a second, while the nodes of a cluster restart
}

func main() {
	var s settings
	brokers := flag.String("brokers", os.Getenv("AMQP_URL"), "addresses of the brokers, separated by commas, each with an optional NAME= before it")
	cluster := flag.String("cluster", "", "NODE=address of the nodes of a cluster, separated by commas, to restart them")
	tool := flag.String("tool", "", "the command that restarts the nodes of the cluster")
	flag.IntVar(&s.messages, "messages", 1000, "messages of the good work queues, and as many of the other")
	flag.IntVar(&s.rate, "rate", 60, "messages a second, while the nodes of a cluster restart")
	flag.BoolVar(&s.relief, "relief", false, "wait until the full work queue has got all of its messages: it takes six minutes")
	flag.BoolVar(&s.own, "own", false, "with -cluster: tiers of each work queue's own, to compare")
	flag.Parse()
	claims, err := run(*brokers, *cluster, *tool, s)
	fmt.Println()
	fmt.Println(strings.Join(claims, "\n"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "neighbours:", err)
		os.Exit(1)
	}
}

func run(brokers, cluster, tool string, s settings) (claims []string, err error) {
	if cluster != "" {
		if tool == "" {
			return nil, errors.New("-tool is empty: name the command that restarts the nodes of the cluster")
		}
		nodes, err := nodesOf(cluster)
		if err != nil {
			return nil, err
		}
		return rollingRestart(nodes, tool, s)
	}
	nodes, err := nodesOf(brokers)
	if err != nil {
		return nil, err
	}
	for _, node := range nodes {
		for _, fault := range faults {
			measured, err := fault.measure(node, s)
			claims = append(claims, measured...)
			if err != nil {
				return claims, fmt.Errorf("%s@%s: %w", fault.name, node.name, err)
			}
		}
	}
	return claims, nil
}

// A node is a broker, or one of a cluster.
type node struct{ name, uri string }

func nodesOf(list string) (all []node, err error) {
	for entry := range strings.SplitSeq(list, ",") {
		name, uri, named := strings.Cut(entry, "=")
		if !named || strings.Contains(name, "://") {
			name, uri = "", entry
		}
		if uri == "" {
			return nil, errors.New("there is no broker: set AMQP_URL, or -brokers")
		}
		if name == "" {
			if name, err = version(uri); err != nil {
				return nil, err
			}
		}
		all = append(all, node{name, uri})
	}
	return all, nil
}

// version returns major and minor of the version of RabbitMQ.
func version(uri string) (string, error) {
	connection, err := amqp091.Dial(uri)
	if err != nil {
		return "", err
	}
	defer func() { _ = connection.Close() }()
	of, _ := connection.Properties["version"].(string)
	parts := strings.SplitN(of, ".", 3)
	return strings.Join(parts[:min(len(parts), 2)], "."), nil
}

// late formats a claim about the lateness of good messages.
func late(claim, series string, lateness []time.Duration, target time.Duration) string {
	slices.Sort(lateness)
	at := func(share float64) time.Duration {
		return lateness[min(int(share*float64(len(lateness))), len(lateness)-1)].Round(time.Millisecond)
	}
	verdict := "ok"
	if at(0.99) > target {
		verdict = "missed"
	}
	fmt.Printf("%s@%s: %d good retries, late p50 %v, p99 %v, max %v\n", claim, series, len(lateness), at(0.5), at(0.99), lateness[len(lateness)-1].Round(time.Millisecond))
	return fmt.Sprintf("claim %s@%s measured=%dms target=%dms %s", claim, series, at(0.99).Milliseconds(), target.Milliseconds(), verdict)
}

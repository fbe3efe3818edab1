// Command keep writes a file of package kept: it brings about all states in a virtual host of its own, and takes the
// messages out of it. With -expected it replays the messages of all files, and writes only what is expected.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/kept"
)

func main() {
	folder := flag.String("to", "kept", "the folder of the file")
	expected := flag.Bool("expected", false, "write what is expected of the messages that the files have")
	flag.Parse()
	change := run
	if *expected {
		change = expect
	}
	if err := change(*folder); err != nil {
		log.Fatal("keep: ", err)
	}
}

func run(folder string) error {
	client, err := broker.Client(os.Getenv("AMQP_URL"), os.Getenv("AMQP_MANAGEMENT_URL"))
	if err != nil {
		return fmt.Errorf("AMQP_URL must be the address of a broker, as `make broker-up` prints it: %w", err)
	}
	overview, err := client.Overview()
	if err != nil {
		return err
	}
	file := &kept.File{Broker: overview.RabbitMQVersion}
	err = inHost(client, "kept", func(uri string) error { return write(client, uri, file) })
	if err != nil {
		return fmt.Errorf("bring the states about: %w", err)
	}
	written := file.Expected
	if err := replay(client, file); err != nil {
		return fmt.Errorf("read what was kept: %w", err)
	}
	for what, pair := range map[string][2]any{
		"declared": {written.Declared, file.Expected.Declared}, "letters": {written.Letters, file.Expected.Letters},
		"causes": {written.Causes, file.Expected.Causes},
	} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			return fmt.Errorf("%s before and after the messages were put back:\n%v\n%v", what, pair[0], pair[1])
		}
	}
	name := folder + "/" + regexp.MustCompile(`^\d+\.\d+`).FindString(file.Broker) + ".json"
	seen := file.Expected
	log.Printf("%s: %d messages, %d calls, left over %v", name, len(file.Messages), len(seen.Calls), seen.LeftOver)
	return file.Write(name)
}

// expect replays the messages of all files.
func expect(folder string) error {
	client, err := broker.Client(os.Getenv("AMQP_URL"), os.Getenv("AMQP_MANAGEMENT_URL"))
	if err != nil {
		return err
	}
	names, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return err
	}
	for _, name := range names {
		file, err := kept.Read(name)
		if err != nil {
			return err
		}
		if err := replay(client, file); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := file.Write(name); err != nil {
			return err
		}
	}
	return nil
}

// replay sets what is expected of the messages of a file.
func replay(client *rabbithole.Client, file *kept.File) error {
	return inHost(client, "kept-again", func(uri string) (err error) {
		file.Expected, err = kept.Replay(context.Background(), client, uri, file)
		return err
	})
}

// inHost runs a function with the address of an empty virtual host.
func inHost(client *rabbithole.Client, name string, run func(uri string) error) error {
	uri, remove, err := broker.Host(client, os.Getenv("AMQP_URL"), name)
	if err != nil {
		return err
	}
	return errors.Join(run(uri), remove())
}

// write brings about all states, and takes them into the file.
func write(client *rabbithole.Client, uri string, file *kept.File) error {
	connection, err := amqp091.Dial(uri)
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	s := &scene{uri: uri, client: client, connection: connection, channel: channel, file: file, calls: map[string]int{}}
	return s.play()
}

const patience = time.Minute // for one event

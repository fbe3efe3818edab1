// Command keep writes a file of package kept: it brings about all states in a virtual host of its own, and takes the
// messages out of it.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/integration/kept"
)

func main() {
	folder := flag.String("to", "kept", "the folder of the file")
	flag.Parse()
	if err := run(*folder); err != nil {
		log.Fatal("keep: ", err)
	}
}

func run(folder string) error {
	address, err := url.Parse(os.Getenv("AMQP_URL"))
	if err != nil || address.Host == "" {
		const like = "amqp://guest:guest@127.0.0.1:5672/"
		return fmt.Errorf("AMQP_URL is %q: it must be the address of a broker, such as %s", os.Getenv("AMQP_URL"), like)
	}
	client, err := management(address)
	if err != nil {
		return err
	}
	overview, err := client.Overview()
	if err != nil {
		return err
	}
	file := &kept.File{Broker: overview.RabbitMQVersion}
	err = inHost(client, address, "kept", func(uri string) error { return write(client, uri, file) })
	if err != nil {
		return fmt.Errorf("bring the states about: %w", err)
	}
	written := file.Expected
	err = inHost(client, address, "kept-again", func(uri string) error {
		file.Expected, err = kept.Replay(context.Background(), client, uri, file)
		return err
	})
	if err != nil {
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

// management returns a client of the management API, at AMQP_MANAGEMENT_URL or at the AMQP port plus 10,000.
func management(address *url.URL) (*rabbithole.Client, error) {
	endpoint := os.Getenv("AMQP_MANAGEMENT_URL")
	if endpoint == "" {
		port, err := strconv.Atoi(address.Port())
		if err != nil {
			return nil, fmt.Errorf("AMQP_URL has the port %q: it must have a number", address.Port())
		}
		endpoint = "http://" + net.JoinHostPort(address.Hostname(), strconv.Itoa(port+10_000))
	}
	password, _ := address.User.Password()
	return rabbithole.NewClient(endpoint, address.User.Username(), password)
}

// inHost runs a function with the address of an empty virtual host.
func inHost(client *rabbithole.Client, address *url.URL, name string, run func(uri string) error) error {
	drop := func() {
		if response, err := client.DeleteVhost(name); err == nil {
			_ = response.Body.Close()
		}
	}
	drop()
	defer drop()
	for _, call := range []func() (*http.Response, error){
		func() (*http.Response, error) { return client.PutVhost(name, rabbithole.VhostSettings{}) },
		func() (*http.Response, error) {
			all := rabbithole.Permissions{Configure: ".*", Write: ".*", Read: ".*"}
			return client.UpdatePermissionsIn(name, client.Username, all)
		},
	} {
		response, err := call()
		if err != nil {
			return err
		}
		_ = response.Body.Close()
	}
	host := *address
	host.Path = "/" + name
	return run(host.String())
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

//go:build unix

package servers

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/tieredretry/watermill-retry/tools/server"
)

// natsArgument is the first argument of a process that is a NATS server. The program is this one: the server is a Go
// module.
const natsArgument = "run-a-private-nats-server"

func init() {
	if len(os.Args) == 4 && os.Args[1] == natsArgument {
		_, _ = fmt.Fprintln(os.Stderr, beNATS(os.Args[2], os.Args[3]))
		os.Exit(1)
	}
}

// beNATS makes this process a NATS server. It returns only where that fails.
func beNATS(port, store string) error {
	number, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	nats, err := natsserver.NewServer(&natsserver.Options{
		Host: "127.0.0.1", Port: number, JetStream: true, StoreDir: store, NoSigs: true, NoLog: true,
	})
	if err != nil {
		return err
	}
	nats.Start()
	nats.WaitForShutdown()
	return fmt.Errorf("the server has ended")
}

// NATS starts a NATS server with JetStream, which stores its streams in files. URL is nats://host:port.
func NATS(ctx context.Context) (*Server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return server.Start(ctx, server.Plan{
		Name: "NATS server", Ending: syscall.SIGKILL,
		Command: func(folder string, port int) (string, []string, error) {
			number := strconv.Itoa(port)
			return "nats://" + net.JoinHostPort("127.0.0.1", number), []string{self, natsArgument, number, folder}, nil
		},
		Answers: func(_ context.Context, url string) error {
			connection, err := nats.Connect(url)
			if err != nil {
				return err
			}
			defer connection.Close()
			js, err := connection.JetStream()
			if err == nil {
				_, err = js.AccountInfo()
			}
			return err
		},
	})
}

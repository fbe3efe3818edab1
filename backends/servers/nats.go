package servers

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"

	"github.com/tieredretry/watermill-retry/tools/server"
)

// NATS starts a NATS server with JetStream in this process, which stores its streams in files.
func NATS(context.Context) (*Server, error) {
	store, err := server.Folder("nats")
	if err != nil {
		return nil, err
	}
	nats, err := natsserver.NewServer(&natsserver.Options{
		Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: store, NoSigs: true, NoLog: true,
	})
	if err == nil {
		nats.Start()
		if !nats.ReadyForConnections(server.StartDeadline) {
			nats.Shutdown()
			err = errors.New("a private NATS server did not start within " + server.StartDeadline.String())
		}
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(store))
	}
	return &Server{URL: nats.ClientURL(), Stop: sync.OnceFunc(func() {
		nats.Shutdown()
		stopped := make(chan struct{})
		go func() { nats.WaitForShutdown(); close(stopped) }()
		select {
		case <-stopped:
		case <-time.After(10 * time.Second): // the files are removed in any case
		}
		_ = os.RemoveAll(store)
	})}, nil
}

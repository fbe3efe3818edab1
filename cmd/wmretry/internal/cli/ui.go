package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/backend"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/page"
)

// uiPatience is how long the server waits at its end for views that it still writes.
const uiPatience = 5 * time.Second

type uiFlags struct {
	listen                  string
	allowWrite, allowRemote bool
	hosts, letters, redact  list
}

func newUICommand(e *env) *cobra.Command {
	f := uiFlags{listen: "127.0.0.1:8080"}
	flags := variables{"listen": &f.listen, "allow-write": &f.allowWrite, "allow-remote": &f.allowRemote, "host": &f.hosts,
		"redact": &f.redact, "letters": &f.letters}
	return e.command("ui [QUEUE...]", flags, func(ctx context.Context, works []string) error {
		return e.serve(ctx, f, works)
	})
}

// serve serves the page until the context ends.
func (e *env) serve(ctx context.Context, f uiFlags, works []string) error {
	local, err := isLoopback(f.listen)
	if err != nil {
		return err
	}
	if !local && !f.allowRemote {
		return usage("--listen %s can be reached from other machines, and the page has no login. Use a loopback "+
			"address such as 127.0.0.1:8080 and a tunnel, or permit it with --allow-remote", safe(f.listen))
	}
	shown, end, err := e.pageOver(ctx, page.Config{
		Queues: f.letters, AllowWrite: f.allowWrite, Hosts: append(page.LoopbackHosts(), f.hosts...), Redact: f.redact,
		Logger: e.logger(),
	}, works)
	defer end()
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return fmt.Errorf("%w; --listen names another address or port", err)
	}
	if !local {
		_, _ = fmt.Fprintf(e.stderr, "Warning: the page has no login. Each machine that reaches %s can read the "+
			"messages%s.\n", listener.Addr(),
			map[bool]string{true: ", redrive and discard them"}[f.allowWrite])
	}
	mode := "It only shows: --allow-write permits redrive and discard"
	if f.allowWrite {
		mode = "It permits redrive and discard"
	}
	_, _ = fmt.Fprintf(e.stdout, "The page is at http://%s/\n%s. Ctrl-C stops it.\n", listener.Addr(), mode)
	return e.serveOn(ctx, listener, shown)
}

// pageOver returns the page of the backend, or over several, and a function that closes them.
func (e *env) pageOver(
	ctx context.Context, config page.Config, works []string,
) (shown *page.Page, end func(), err error) {
	var stores []*backend.Store
	end = func() {
		for _, store := range stores {
			_ = store.Close()
		}
	}
	addresses, of, err := e.addresses()
	if err != nil {
		return nil, end, err
	}
	pages := map[string]*page.Page{}
	for _, address := range addresses {
		from, err := e.configOf(address, of)
		if err != nil {
			return nil, end, err
		}
		name := from.Address.Name()
		if len(works) > 0 && (len(addresses) > 1 || from.Address.Kind != backend.RabbitMQ) {
			return nil, end, usage("QUEUE is for a page of one RabbitMQ: leave it out")
		}
		if pages[name] != nil {
			return nil, end, usage("%s names %s twice", of, safe(name))
		}
		store, err := open(ctx, from)
		if err != nil {
			return nil, end, err
		}
		stores, config.Store = append(stores, store), store.Store
		if len(works) > 0 {
			config.Status = func(ctx context.Context) (letters.Status, error) { return store.Rabbit.Status(ctx, works...) }
		}
		one := config
		one.AllowWrite = config.AllowWrite && !from.Address.Kind.Keeps
		if pages[name], err = page.New(one); err != nil {
			return nil, end, exit(codeUsage, err)
		}
		shown = pages[name]
	}
	if len(pages) > 1 {
		shown, err = page.Over(pages)
	}
	return shown, end, err
}

func (e *env) serveOn(ctx context.Context, listener net.Listener, shown *page.Page) error {
	server := &http.Server{Handler: shown, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute,
		WriteTimeout: 2 * time.Minute, IdleTimeout: 2 * time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
		_, _ = fmt.Fprintln(e.stderr, "Stopping.")
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), uiPatience)
		defer cancel()
		if server.Shutdown(last) != nil {
			_ = server.Close()
		}
	}
	_ = shown.Close()
	for _, line := range shown.Summaries() {
		_, _ = fmt.Fprintln(e.stderr, safe(line))
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// isLoopback reports whether only this machine can reach an address.
func isLoopback(listen string) (bool, error) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false, usage("--listen is %s: it must be an address and a port, such as 127.0.0.1:8080", safe(listen))
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback(), nil
}

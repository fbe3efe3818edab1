//go:build unix

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// startDeadline leaves time for a machine that also compiles on its two cores.
const startDeadline = 2 * time.Minute

// node is a private RabbitMQ: its data, ports, cookie and epmd are its own.
type node struct {
	Folder string
	Group  int // the process group of the server
	Epmd   int // its epmd's port

	ports portSet
	name  string
}

// errPortTaken: another process has taken a port. The next try uses other ports.
var errPortTaken = errors.New("a port was taken meanwhile")

func startNode(ctx context.Context, server installed) (broker, error) {
	say("starting a private RabbitMQ (%s)", server.script("rabbitmq-server"))
	for try := 1; ; try++ {
		b, err := tryNode(ctx, server)
		if !errors.Is(err, errPortTaken) || try == 3 {
			return b, err
		}
	}
}

func tryNode(ctx context.Context, server installed) (broker, error) {
	ports, err := freePorts()
	if err != nil {
		return broker{}, err
	}
	folder, err := os.MkdirTemp("", "devbroker-")
	if err != nil {
		return broker{}, err
	}
	n := &node{Folder: folder, Epmd: ports.epmd, ports: ports, name: "devbroker-" + rand.Text()[:8] + "@localhost"}
	if err := n.furnish(server); err != nil {
		n.stop()
		return broker{}, err
	}
	b := broker{
		URL:        fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", ports.amqp),
		Management: fmt.Sprintf("http://127.0.0.1:%d", ports.management),
		Prometheus: fmt.Sprintf("http://127.0.0.1:%d", ports.prometheus),
		Ctl:        n.file("ctl"),
		Node:       n,
	}
	if b.Kill, b.Start, err = n.crashable(server, b); err == nil {
		err = n.start(ctx, server, b)
	}
	if err != nil {
		err = n.explain(err)
		n.stop()
		return broker{}, err
	}
	return b, nil
}

func (n *node) file(name string) string { return filepath.Join(n.Folder, name) }

// marker is on the command line of the node's Erlang VM. down checks it: another process may have got the VM's process id.
func (n *node) marker() string { return "-devbroker " + n.Folder }

// furnish writes the node's files. They replace every file that RabbitMQ would otherwise read from the system.
func (n *node) furnish(server installed) error {
	ctl := "#!/bin/sh\n"
	for _, entry := range n.environ() {
		key, value, _ := strings.Cut(entry, "=")
		ctl += "export " + key + "=" + quote(value) + "\n"
	}
	ctl += "exec " + quote(server.script("rabbitmqctl")) + " -q -n " + quote(n.name) + " \"$@\"\n"
	files := []struct {
		name, text string
		mode       os.FileMode
	}{
		{"ctl", ctl, 0o700},
		{".erlang.cookie", rand.Text(), 0o400},
		{"rabbitmq-env.conf", "", 0o600},
		{"advanced.config", "[].\n", 0o600},
		{"enabled_plugins", "[rabbitmq_management,rabbitmq_prometheus].\n", 0o600},
		{"rabbitmq.conf", fmt.Sprintf(
			"listeners.tcp.1 = 127.0.0.1:%d\nmanagement.tcp.ip = 127.0.0.1\nmanagement.tcp.port = %d\n"+
				"prometheus.tcp.ip = 127.0.0.1\nprometheus.tcp.port = %d\n",
			n.ports.amqp, n.ports.management, n.ports.prometheus), 0o600},
	}
	for _, f := range files {
		if err := os.WriteFile(n.file(f.name), []byte(f.text), f.mode); err != nil {
			return err
		}
	}
	return os.Mkdir(n.file("conf.d"), 0o700)
}

func (n *node) environ() []string {
	return []string{
		"HOME=" + n.Folder,
		"LC_ALL=C.UTF-8",
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"ERL_EPMD_PORT=" + strconv.Itoa(n.ports.epmd),
		"RABBITMQ_NODENAME=" + n.name,
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(n.ports.distribution),
		"RABBITMQ_CONF_ENV_FILE=" + n.file("rabbitmq-env.conf"),
		"RABBITMQ_CONFIG_FILE=" + n.file("rabbitmq.conf"),
		"RABBITMQ_CONFIG_FILES=" + n.file("conf.d"),
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + n.file("advanced.config"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + n.file("enabled_plugins"),
		"RABBITMQ_MNESIA_BASE=" + n.file("data"),
		"RABBITMQ_LOG_BASE=" + n.file("log"),
		"RABBITMQ_PID_FILE=" + n.file("pid"),
	}
}

func (n *node) start(ctx context.Context, server installed, b broker) error {
	output, err := os.Create(n.file("output"))
	if err != nil {
		return err
	}
	defer output.Close()
	process := exec.Command(server.script("rabbitmq-server"))
	process.Dir = n.Folder
	process.Stdout, process.Stderr = output, output
	process.Env = append(without(os.Environ(), "RABBITMQ_", "ERL_", "HOME=", "LC_ALL=", "NOTIFY_SOCKET="), n.environ()...)
	process.Env = append(process.Env,
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1} "+n.marker())
	process.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C reaches only this process, which then stops the node
	if err := process.Start(); err != nil {
		return err
	}
	n.Group = process.Process.Pid
	ended := make(chan error, 1)
	go func() { ended <- process.Wait() }()
	return n.await(ctx, b, ended)
}

// await waits until the broker accepts connections and the management API, which starts last, answers.
func (n *node) await(ctx context.Context, b broker, ended <-chan error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startDeadline, errors.New("not ready after "+startDeadline.String()))
	defer cancel()
	uri, err := url.Parse(b.URL)
	if err != nil {
		return err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return fmt.Errorf("its process ended (%v)", err)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
			if handshake(ctx, uri) == nil && managed(ctx, b.Management) == nil {
				return nil
			}
		}
	}
}

// explain adds the end of the node's log to an error.
func (n *node) explain(cause error) error {
	if errors.Is(cause, context.Canceled) {
		return cause
	}
	files, _ := filepath.Glob(n.file("log/*.log"))
	text := ""
	for _, file := range append(files, n.file("output")) {
		output, _ := os.ReadFile(file)
		if strings.Contains(string(output), "eaddrinuse") {
			return errPortTaken
		}
		lines := strings.Split(strings.TrimSpace(string(output)), "\n")
		text += "\n" + strings.Join(lines[max(0, len(lines)-15):], "\n")
	}
	return fmt.Errorf("RabbitMQ did not start: %w. The end of its log:%s\n"+
		"Repair that RabbitMQ, or set AMQP_URL to one that runs", cause, text)
}

// stop kills the node and its epmd, and removes its folder. The data is not used again: the node need not shut down in order.
func (n *node) stop() {
	if n.Group != 0 && n.started() {
		_ = syscall.Kill(-n.Group, syscall.SIGKILL)
	}
	n.kill() // after a crash and a restart the node is in another group
	killEpmd(n.Epmd)
	if err := os.RemoveAll(n.Folder); err != nil {
		say("%v", err)
	}
}

// started reports whether the process group is still the node's: this process is its parent, or the VM in it has the marker.
func (n *node) started() bool {
	if n.name != "" {
		return true
	}
	return slices.ContainsFunc(processes(n.marker()), func(pid int) bool {
		group, err := syscall.Getpgid(pid)
		return err == nil && group == n.Group
	})
}

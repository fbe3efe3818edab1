//go:build unix

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/tieredretry/watermill-retry/tools/server"
)

// node is a private RabbitMQ: its data, ports, cookie and epmd are its own. It is stored as JSON in its folder.
type node struct {
	Folder, Name string
	Server       string // the path of rabbitmq-server
	Ports        portSet

	process *os.Process // where this process has started it
}

type portSet struct{ AMQP, Management, Prometheus, Distribution, Epmd int }

// errPortTaken: another process has taken a port. The next try uses other ports.
var errPortTaken = errors.New("a port was taken meanwhile")

func startNode(ctx context.Context, rabbit string) (broker, error) {
	say("starting a private RabbitMQ (%s)", rabbit)
	for try := 1; ; try++ {
		b, err := tryNode(ctx, rabbit)
		if !errors.Is(err, errPortTaken) || try == 3 {
			return b, err
		}
	}
}

func tryNode(ctx context.Context, rabbit string) (broker, error) {
	free, err := server.FreePorts(5)
	if err != nil {
		return broker{}, err
	}
	ports := portSet{free[0], free[1], free[2], free[3], free[4]}
	folder, err := os.MkdirTemp("", "devbroker-")
	if err != nil {
		return broker{}, err
	}
	n := &node{Folder: folder, Name: "devbroker-" + rand.Text()[:8] + "@localhost", Server: rabbit, Ports: ports}
	b := n.broker()
	if err = n.furnish(); err == nil {
		err = n.makeCrashable(b.Variables)
	}
	if err == nil {
		err = n.start(ctx)
	}
	if err != nil {
		err = n.explain(err)
		n.stop()
		return broker{}, err
	}
	return b, nil
}

func (n *node) broker() broker {
	return broker{Node: n, Variables: map[string]string{
		"AMQP_URL":            fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", n.Ports.AMQP),
		"AMQP_MANAGEMENT_URL": fmt.Sprintf("http://127.0.0.1:%d", n.Ports.Management),
		"AMQP_PROMETHEUS_URL": fmt.Sprintf("http://127.0.0.1:%d", n.Ports.Prometheus),
		"BROKER_CTL":          n.file("ctl"),
	}}
}

func (n *node) file(name string) string { return filepath.Join(n.Folder, name) }

// marker is on the command line of the node's Erlang VM. down checks it: another process may have got the VM's
// process id.
func (n *node) marker() string { return "-devbroker " + n.Folder }

// furnish writes the node's files. They replace every file that RabbitMQ would otherwise read from the system.
func (n *node) furnish() error {
	ctl := "#!/bin/sh\n"
	for _, entry := range n.environ() {
		key, value, _ := strings.Cut(entry, "=")
		ctl += "export " + key + "=" + quote(value) + "\n"
	}
	ctl += "exec " + quote(filepath.Join(filepath.Dir(n.Server), "rabbitmqctl")) + " -q -n " + quote(n.Name) + " \"$@\"\n"
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
			n.Ports.AMQP, n.Ports.Management, n.Ports.Prometheus), 0o600},
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
		"ERL_EPMD_PORT=" + strconv.Itoa(n.Ports.Epmd),
		"RABBITMQ_NODENAME=" + n.Name,
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(n.Ports.Distribution),
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

func (n *node) start(ctx context.Context) error {
	process := exec.Command(n.Server)
	process.Env = without(os.Environ(), "RABBITMQ_", "ERL_", "HOME=", "LC_ALL=", "NOTIFY_SOCKET=")
	process.Env = append(append(process.Env, n.environ()...),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1} "+n.marker())
	// Ctrl-C reaches only this process, which then stops the node.
	process.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	ended, err := server.Launch(process, n.Folder)
	if err != nil {
		return err
	}
	n.process = process.Process
	return server.Await(ctx, ended, n.broker().ready)
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

// stop kills the node and its epmd, and removes its folder. The data is not used again: the node need not shut down
// in order.
func (n *node) stop() {
	if n.process != nil { // the VM may not run yet
		_ = syscall.Kill(-n.process.Pid, syscall.SIGKILL)
	}
	n.kill()
	killEpmd(n.Ports.Epmd)
	if err := os.RemoveAll(n.Folder); err != nil {
		say("%v", err)
	}
}

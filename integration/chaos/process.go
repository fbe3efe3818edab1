package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// rowVariable makes this program run one row, so that the goroutines are those of this row only.
const rowVariable = "CHAOS_ROW"

type rowTask struct {
	Fault   string
	Broker  Broker
	Options Options
}

// apartMain must be called first, because the processes of rows and of consumers run the same program. In those
// processes it does not return.
func apartMain() {
	var do func(context.Context, string) error
	var task string
	if task = os.Getenv(childVariable); task != "" {
		do = consumer
	} else if task = os.Getenv(rowVariable); task != "" {
		do = oneFault
	} else {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := do(ctx, task)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func oneFault(ctx context.Context, text string) error {
	var task rowTask
	if err := json.Unmarshal([]byte(text), &task); err != nil {
		return err
	}
	_ = os.Unsetenv(rowVariable)
	for _, fault := range All() {
		if fault.Name == task.Fault {
			return json.NewEncoder(os.Stdout).Encode(runHere(ctx, fault, task.Broker, task.Options))
		}
	}
	return fmt.Errorf("no fault has the name %q", task.Fault)
}

// Run disturbs the app with a fault, in a process of its own, which shuts down when ctx ends. If a fault that
// disturbs the whole broker ends with an error, Run restores the broker.
func Run(ctx context.Context, fault Fault, b Broker, o Options) Row {
	row, err := apart(ctx, rowTask{fault.Name, b, o})
	if err != nil {
		row = Row{Fault: fault.Name, Broker: b.Name, NotRun: err.Error()}
	}
	if row.NotRun != "" && fault.Alone() && fault.Missing(b) == "" {
		if err := b.Restore(); err != nil {
			row.NotRun += "; and the broker could not be restored: " + err.Error()
		}
	}
	return row
}

func apart(ctx context.Context, t rowTask) (row Row, err error) {
	task, err := json.Marshal(t)
	if err != nil {
		return row, err
	}
	self, err := os.Executable()
	if err != nil {
		return row, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	process := exec.CommandContext(ctx, self)
	process.Env = append(os.Environ(), rowVariable+"="+string(task))
	process.Cancel = func() error { return process.Process.Signal(os.Interrupt) }
	process.WaitDelay = 2 * time.Minute
	var output bytes.Buffer
	process.Stdout, process.Stderr = &output, os.Stderr
	if err := process.Run(); err != nil {
		return row, fmt.Errorf("the process of the row: %w", err)
	}
	return row, json.Unmarshal(output.Bytes(), &row)
}

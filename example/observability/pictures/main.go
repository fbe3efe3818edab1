//go:build unix

// Command pictures makes the pictures of docs/observability-demo.md from a run of the demo, with a headless Chromium:
//
//	make screenshots-observe
//
// Two are pages of Prometheus. The panels and the trace are drawn by this command, from the boards, the data of the Prometheus and the
// spans of the run: there is no Grafana and no Jaeger in them.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

const (
	outage   = 20 * time.Second
	after    = 15 * time.Second // so much of the time after the outage is in the pictures
	patience = 2 * time.Minute  // for a line of the demo
	largest  = 150_000          // bytes of a picture
)

func main() {
	demo := flag.String("demo", "", "the `program` of the demo")
	folder := flag.String("to", "../../docs/images", "the `folder` of the pictures")
	boards := flag.String("board", "../../observability/dashboards/app.json", "the `file` of the board")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := pictures(ctx, *demo, *boards, *folder)
	stop()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

// run is a run of the demo, whose lines are read one by one.
type run struct {
	process *exec.Cmd
	lines   chan string
	began   time.Time
	spans   string
}

func pictures(ctx context.Context, demo, boards, folder string) (err error) {
	work, err := os.MkdirTemp("", "pictures-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	b, err := newBrowser(ctx, filepath.Join(work, "profile"))
	if err != nil {
		return err
	}
	defer b.close()
	r, err := start(demo, filepath.Join(work, "spans.json"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.end()) }()

	line, err := r.until(ctx, `^Prometheus (http://[^ ]+/classic)/alerts`)
	if err != nil {
		return err
	}
	pages := line[1]
	if _, err := r.until(ctx, `ten orders a second`); err != nil {
		return err
	}
	r.began = time.Now()
	if _, err := r.until(ctx, `alert \S*Pause\S*: firing`); err != nil {
		return err
	}
	alerts, err := b.page(pages+"/alerts", 1000, 620, "true")
	if err != nil {
		return err
	}
	if _, err := r.until(ctx, `the app goes on`); err != nil {
		return err
	}
	select { // the panels show how the app goes on
	case <-time.After(after):
	case <-ctx.Done():
		return ctx.Err()
	}
	ended := time.Now()
	graph, err := b.page(graphOf(pages, r.began, ended), 1000, 920, `document.querySelector(".rickshaw_graph svg path") !== null`)
	if err != nil {
		return err
	}
	panels, err := readBoard(boards)
	if err != nil {
		return err
	}
	page, err := panels.draw(ctx, strings.TrimSuffix(pages, "/classic"), r.began, ended)
	if err != nil {
		return err
	}
	board, err := b.html(filepath.Join(work, "board.html"), page, 1200)
	if err != nil {
		return err
	}
	page, err = waterfall(r.spans)
	if err != nil {
		return err
	}
	trace, err := b.html(filepath.Join(work, "trace.html"), page, 1000)
	if err != nil {
		return err
	}
	for name, png := range map[string][]byte{
		"observe-alerts": alerts, "observe-graph": graph, "observe-board": board, "observe-trace": trace,
	} {
		if len(png) > largest {
			err = errors.Join(err, fmt.Errorf("the picture %s has %d bytes: at most %d", name, len(png), largest))
		}
		err = errors.Join(err, os.WriteFile(filepath.Join(folder, name+".png"), png, 0o644))
	}
	return err
}

// graphOf is the address of Prometheus' page of the retries in the run.
func graphOf(pages string, began, ended time.Time) string {
	query := url.Values{
		"g0.expr":        {`sum by (outcome) (rate(watermill_retry_outcomes_total[10s]))`},
		"g0.tab":         {"0"},
		"g0.range_input": {fmt.Sprintf("%ds", int(ended.Sub(began).Seconds())+5)},
		"g0.step_input":  {"1"},
	}
	return pages + "/graph?" + query.Encode()
}

func start(demo, spans string) (*run, error) {
	r := &run{
		process: exec.Command(demo, "-outage", outage.String(), "-spans", spans), // its working directory is that of the example
		lines:   make(chan string, 1000), spans: spans,
	}
	r.process.Stderr = os.Stderr
	output, err := r.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := r.process.Start(); err != nil {
		return nil, fmt.Errorf("-demo: %w", err)
	}
	go func() {
		defer close(r.lines)
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			r.lines <- scanner.Text()
		}
	}()
	return r, nil
}

// until waits for a line of the demo, and returns the parts of the match.
func (r *run) until(ctx context.Context, pattern string) ([]string, error) {
	expression := regexp.MustCompile(pattern)
	deadline := time.After(patience)
	for {
		select {
		case line, open := <-r.lines:
			if !open {
				return nil, fmt.Errorf("the demo has ended before a line with %q", pattern)
			}
			fmt.Println(line)
			if match := expression.FindStringSubmatch(line); match != nil {
				return match, nil
			}
		case <-deadline:
			return nil, fmt.Errorf("the demo has printed no line with %q in %v", pattern, patience)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// end ends the demo, which removes its queues.
func (r *run) end() error {
	_ = r.process.Process.Signal(syscall.SIGINT)
	rest := []string{}
	for line := range r.lines {
		rest = append(rest, line)
	}
	if err := r.process.Wait(); err != nil {
		return fmt.Errorf("the demo: %w: %s", err, strings.Join(rest, "; "))
	}
	return nil
}

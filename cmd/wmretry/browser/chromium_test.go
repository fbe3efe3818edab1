//go:build unix

package browser_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/tools/server"
)

// patience is how long the test waits for an event.
const patience = 3 * time.Minute // a busy machine takes minutes

// chromium finds the browser. Where there is none, it installs Debian's.
func chromium(t *testing.T) string {
	t.Helper()
	var path string
	there := func() bool {
		for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable",
			"/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"} {
			if found, err := exec.LookPath(name); err == nil {
				path = found
				return true
			}
		}
		return false
	}
	if there() {
		return path
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	whyNot := server.Usable(ctx)
	require.Empty(t, whyNot, "there is no chromium, and it cannot be installed here: install it yourself")
	require.NoError(t, server.Install(ctx, there, []string{"chromium", "fonts-dejavu-core"}))
	require.True(t, there(), "chromium is installed, but it is not in PATH")
	return path
}

// browser is a tab of a headless Chromium. It collects what must not happen: dialogs, errors on the console, and violations of the
// Content-Security-Policy.
type browser struct {
	t   *testing.T
	ctx context.Context

	lock   sync.Mutex
	faults []string
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	profile, err := os.MkdirTemp("", "chromium")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(profile) })
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(chromium(t)), chromedp.UserDataDir(profile), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(1100, 800),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-domain-reliability", true),
		chromedp.Flag("hide-scrollbars", true), chromedp.Flag("disable-dev-shm-usage", true),
		// The browser reaches this host and no other.
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
	)
	allocated, end := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(end)
	ctx, cancel := chromedp.NewContext(allocated)
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx)
		cancel()
	})
	b := &browser{t: t, ctx: ctx}
	require.NoError(t, chromedp.Listen(ctx, b.listen))
	call(b, log.Enable, cdp.Empty{})
	call(b, runtime.Enable, cdp.Empty{})
	call(b, page.Enable, page.EnableParams{})
	call(b, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{
		Source: `document.addEventListener("securitypolicyviolation", e => console.error("policy: " + e.violatedDirective + " " + e.blockedURI))`,
	})
	b.window(1100, 700, false)
	b.dark(false)
	return b
}

// call sends a command to the tab.
func call[P, R any](b *browser, command cdp.Command[P, R], params P) {
	b.t.Helper()
	b.run(chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, command, params)
		return err
	}))
}

func (b *browser) listen(event any) {
	fault := func(format string, args ...any) {
		b.lock.Lock()
		defer b.lock.Unlock()
		b.faults = append(b.faults, fmt.Sprintf(format, args...))
	}
	switch e := event.(type) {
	case *page.EventJavascriptDialogOpening:
		fault("dialog: %s", e.Message)
		go func() {
			_, _ = chromedp.Call(b.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
		}()
	case *runtime.EventExceptionThrown:
		fault("exception: %s", e.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			text, _ := json.Marshal(e.Args)
			fault("console: %s", text)
		}
	case *log.EventEntryAdded:
		// Browsers ask for this where a page is no HTML and so names no icon.
		icon := strings.HasSuffix(e.Entry.URL, "/favicon.ico")
		if (e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning) && !icon {
			fault("log: %s %s", e.Entry.Text, e.Entry.URL)
		}
	}
}

// clean fails the test if the browser has seen what must not happen.
func (b *browser) clean() {
	b.t.Helper()
	b.lock.Lock()
	defer b.lock.Unlock()
	require.Empty(b.t, b.faults)
}

// forget returns what the browser has seen until now.
func (b *browser) forget() []string {
	b.lock.Lock()
	defer b.lock.Unlock()
	faults := b.faults
	b.faults = nil
	return faults
}

// refused waits until the browser has reported an answer with this status, and forgets it. It must have seen no other fault.
func (b *browser) refused(status int) {
	b.t.Helper()
	var faults []string
	require.Eventually(b.t, func() bool { faults = append(faults, b.forget()...); return len(faults) > 0 }, patience, 10*time.Millisecond)
	require.Len(b.t, faults, 1)
	require.Contains(b.t, faults[0], fmt.Sprintf("status of %d", status))
}

func (b *browser) run(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatalf("%v; the page is\n%s", err, b.tryText())
	}
}

func (b *browser) tryText() string {
	ctx, cancel := context.WithTimeout(b.ctx, 5*time.Second)
	defer cancel()
	text, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText`))
	return text
}

// eval returns the value of an expression.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	return get(b, chromedp.Evaluate[T](expression))
}

func get[T any](b *browser, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatalf("%v; the page is\n%s", err, b.tryText())
	}
	return value
}

// open loads an address.
func (b *browser) open(address string) {
	b.t.Helper()
	b.run(chromedp.Navigate(address))
}

// until waits until an expression is true. It looks from here, because chromedp.Poll needs a page whose policy permits eval.
func (b *browser) until(expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	for {
		// While another page loads there is nothing to evaluate in.
		if is, err := chromedp.Run(ctx, chromedp.Evaluate[bool](expression)); err == nil && is {
			return
		}
		select {
		case <-ctx.Done():
			b.t.Fatalf("this does not become true: %s; the page is\n%s", expression, b.tryText())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// text returns what a reader sees.
func (b *browser) text() string {
	b.t.Helper()
	return eval[string](b, "document.body.innerText")
}

// follow clicks a link or button with this text.
func (b *browser) follow(text string) {
	b.t.Helper()
	b.leave(func() {
		found := eval[bool](b, fmt.Sprintf(`(() => { const one = [...document.querySelectorAll("a, button")].find(e => e.textContent.includes(%q)); one?.click(); return !!one })()`, text))
		require.True(b.t, found, "no link or button has the text %q in\n%s", text, b.tryText())
	})
}

// leave does what loads another page, and waits for it.
func (b *browser) leave(do func()) {
	b.t.Helper()
	eval[bool](b, "window.left = false, true")
	do()
	b.until(`window.left === undefined && document.readyState === "complete"`)
}

// tabTo presses Tab until the element in focus has a text, name or id with this.
func (b *browser) tabTo(want string) {
	b.t.Helper()
	for range 200 {
		b.run(chromedp.KeyEvent(kb.Tab))
		if strings.Contains(eval[string](b, `(e => [e.textContent, e.name, e.id].join(" "))(document.activeElement)`), want) {
			require.NotEqual(b.t, "none", eval[string](b, `getComputedStyle(document.activeElement).outlineStyle`), "the focus on %q cannot be seen", want)
			return
		}
	}
	b.t.Fatalf("the key Tab does not lead to %q in\n%s", want, b.tryText())
}

// enter presses Enter, which loads another page.
func (b *browser) enter() {
	b.t.Helper()
	b.leave(func() { b.run(chromedp.KeyEvent(kb.Enter)) })
}

func (b *browser) dark(on bool) {
	b.t.Helper()
	scheme := "light"
	if on {
		scheme = "dark"
	}
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme},
		{Name: "prefers-reduced-motion", Value: "reduce"}, // for pictures
	}})
}

func (b *browser) window(width, height int64, phone bool) {
	b.t.Helper()
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1, Mobile: phone})
}

// picture writes a screenshot into the folder that SCREENSHOTS names, if it is set.
func (b *browser) picture(name string) {
	b.t.Helper()
	folder := os.Getenv("SCREENSHOTS")
	if folder == "" {
		return
	}
	png := get(b, chromedp.CaptureScreenshot())
	require.Less(b.t, len(png), 150_000, "the picture %s is large", name)
	require.NoError(b.t, os.MkdirAll(folder, 0o755))
	require.NoError(b.t, os.WriteFile(filepath.Join(folder, name+".png"), png, 0o644))
}

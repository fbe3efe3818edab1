//go:build unix

package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/tieredretry/watermill-retry/tools/server"
)

const pagePatience = 30 * time.Second

// browser is a tab of a headless Chromium.
type browser struct {
	ctx   context.Context
	close func()
}

func newBrowser(ctx context.Context, profile string) (*browser, error) {
	path, err := server.Program(ctx, "chromium", "chromium", nil)
	if err != nil {
		return nil, err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.UserDataDir(profile), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("hide-scrollbars", true), chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("force-prefers-reduced-motion", true),
		// The browser reaches this host and no other.
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
	)
	allocated, end := chromedp.NewExecAllocator(ctx, options...)
	tab, cancel := chromedp.NewContext(allocated)
	b := &browser{ctx: tab, close: func() {
		_ = chromedp.Cancel(tab)
		cancel()
		end()
	}}
	if err := chromedp.Do(tab); err != nil { // the browser lives as long as the context of its first command
		b.close()
		return nil, fmt.Errorf("cannot start %s: %w", path, err)
	}
	return b, nil
}

// page returns a picture of a page, as soon as the expression is true.
func (b *browser) page(address string, width, height int64, ready string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(b.ctx, pagePatience)
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(width, height), chromedp.Navigate(address)); err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	for {
		is, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`document.readyState === "complete" && (`+ready+`)`))
		if err == nil && is {
			break
		}
		select {
		case <-ctx.Done():
			text, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string]("document.body.innerText"))
			return nil, fmt.Errorf("%s does not become ready: %w; its text is %q", address, ctx.Err(), text)
		case <-time.After(100 * time.Millisecond):
		}
	}
	return chromedp.Run(ctx, chromedp.CaptureScreenshot())
}

// html returns a picture of a whole page that is written into a file.
func (b *browser) html(file, text string, width int64) ([]byte, error) {
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	address := (&url.URL{Scheme: "file", Path: file}).String()
	if _, err := b.page(address, width, 100, "true"); err != nil {
		return nil, err
	}
	height, err := chromedp.Run(b.ctx, chromedp.Evaluate[float64]("document.documentElement.scrollHeight"))
	if err != nil {
		return nil, err
	}
	return b.page(address, width, int64(height), "true")
}

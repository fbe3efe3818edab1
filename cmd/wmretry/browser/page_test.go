//go:build unix

package browser_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The letters, without the hostile one.
const total = declined + refused + old

// TestPage is one visit of an operator: what is dead, why, back with it, away with the rest.
func TestPage(t *testing.T) {
	t.Parallel()
	app := newShop(t)
	app.run()
	command := build(t)
	address, end := app.serve(command, "--allow-write")
	b := newBrowser(t)

	b.open(address)
	b.until(fmt.Sprintf(`document.getElementById("dead-total").textContent === "%d"`, total)) // the script follows
	board := b.text()
	for _, want := range []string{orders, invoices, "30s", "Changes allowed"} {
		assert.Contains(t, board, want)
	}
	b.until(fmt.Sprintf(`[...document.querySelectorAll(".tiers .count")].some(e => e.textContent === "%d")`, waiting))
	b.labelled()
	b.picture("board")

	letters(t, b, address)
	hostileLetter(t, b, app, address)
	onPhone(t, b, address)

	overStores(t, b, app, command)

	app.repaired.Store(true)
	redrive(t, b, app, address)
	b.clean()
	refusesForeignForms(t, b, address)
	b.open(address)
	printed := end()
	b.until(`document.getElementById("live").dataset.stale?.startsWith("No answer") === true`)
	assert.Contains(t, printed, fmt.Sprintf(`Redrive "orders.dead": total=%d done=%d`, total+1, refused))
	assert.NotContains(t, printed, "guest:guest")

	address, end = app.serve(command)
	b.open(address)
	b.forget() // the answers that did not come
	readOnly(t, b, address)
	b.clean()
	end()
}

func letters(t *testing.T, b *browser, address string) {
	t.Helper()
	b.open(address)
	b.follow("dead letters of " + orders)
	text := b.text()
	for _, want := range []string{
		fmt.Sprintf("All %d letters of the queue were looked at.", total), "card <n> of customer <n> was declined", "connect: connection refused",
	} {
		assert.Contains(t, text, want)
	}
	counts := eval[[]string](b, `[...document.querySelectorAll(".causes .count .big")].map(e => e.textContent)`)
	assert.Equal(t, []string{fmt.Sprint(refused), fmt.Sprint(declined), fmt.Sprint(old)}, counts)
	b.labelled()
	b.picture("causes")

	b.follow("connection refused")
	assert.Contains(t, b.text(), fmt.Sprintf("Letters 1 to %d of %d", refused, refused))
	b.labelled()
	b.run(chromedp.Click(chromedp.CSS(`[data-all]`)))
	assert.Equal(t, refused, eval[int](b, `document.querySelectorAll("[name=pick]:checked").length`))
	b.follow("order-7")
	b.until(`document.querySelector("pre.JSON") !== null`)
	text = b.text()
	for _, want := range []string{"First failure", "Last failure", "Given up (exhausted)", "10.0.0.7:5432", `"sku": "book"`, "customer", "ada"} {
		assert.Contains(t, text, want)
	}
	b.dark(true)
	b.open(address + "letter?queue=orders.dead&id=01926c5e-order-4711")
	for _, want := range []string{"Redriven by ada@ops", "after the outage", "Snoozed 2 times", "timestamp", "2 min 36 s later"} {
		assert.Contains(t, b.text(), want)
	}
	b.window(1100, 860, false)
	assert.Equal(t, "rgb(18, 21, 27)", eval[string](b, `getComputedStyle(document.body).backgroundColor`))
	b.picture("letter")
	b.dark(false)
	b.window(1100, 700, false)
}

// hostileLetter opens the letter of a sender that wants its script to run.
func hostileLetter(t *testing.T, b *browser, app *shop, address string) {
	t.Helper()
	app.publish(orders, hostileID, message.Metadata{"fails": hostile + long, hostile: hostile + long}, hostile+long)
	require.Eventually(t, func() bool {
		b.open(address + "letters?queue=orders.dead")
		return strings.Contains(b.text(), "hacked='id'")
	}, patience, patience/200)
	b.follow("hacked='id'")
	text := b.text()
	assert.Contains(t, text, "window.hacked='text'", "the letter is shown as text")
	assert.Contains(t, text, "␛[31m")
	assert.NotContains(t, text, "\u202e")
	assert.Equal(t, 1, eval[int](b, `document.scripts.length`))
	assert.Zero(t, eval[int](b, `document.images.length`))
	assert.Equal(t, "undefined", eval[string](b, `typeof window.hacked`))
	b.follow("Redrive…")
	assert.Contains(t, b.text(), "hacked='id'")
	assert.Equal(t, "undefined", eval[string](b, `typeof window.hacked`))
	b.clean()
}

// overStores looks at the same broker under two names, on a wide and a narrow screen.
func overStores(t *testing.T, b *browser, app *shop, command string) {
	t.Helper()
	app.second = app.address + " " + strings.Replace(app.address, "127.0.0.1", "localhost", 1)
	address, end := app.serve(command)
	app.second = ""
	b.open(address)
	assert.Contains(t, b.text(), "No letters were looked at yet.")
	names := eval[[]string](b, `[...document.querySelectorAll(".card h2 a")].map(e => e.getAttribute("href"))`)
	require.Len(t, names, 2)
	for _, name := range names {
		b.open(address + name + "causes?queue=orders.dead")
	}
	b.follow("All stores")
	b.until(fmt.Sprintf(`document.body.innerText.includes("%d letters")`, 2*refused))
	b.labelled()
	b.picture("stores")
	b.window(360, 740, true)
	b.open(address)
	assert.LessOrEqual(t, eval[int](b, `document.documentElement.scrollWidth`), 360, "the first view scrolls to the side")
	b.window(1100, 700, false)
	b.follow(fmt.Sprintf("%d in ", refused))
	assert.Contains(t, b.text(), fmt.Sprintf("Letters 1 to %d of %d", refused, refused))
	b.clean()
	b.open("about:blank")
	end()
}

// onPhone looks at every kind of page on a small screen.
func onPhone(t *testing.T, b *browser, address string) {
	t.Helper()
	b.window(360, 740, true)
	b.open(address + "letters?queue=orders.dead&cause=8801ed07")
	hostile := "letter?queue=orders.dead&id=" + eval[string](b, "encodeURIComponent(`"+hostileID+"`)")
	for _, view := range []string{
		"", "letters?queue=orders.dead", "letter?queue=orders.dead&id=01926c5e-order-4711", hostile, "Redrive all…", "Discard all…", "nothing",
		"causes?queue=orders.dead",
	} {
		if strings.HasSuffix(view, "…") {
			b.open(address + "causes?queue=orders.dead")
			b.follow(view)
		} else {
			b.open(address + view)
		}
		assert.LessOrEqual(t, eval[int](b, `document.documentElement.scrollWidth`), 360, "%s scrolls to the side", view)
		b.labelled()
	}
	b.picture("phone")
	b.window(1100, 700, false)
	b.refused(http.StatusNotFound) // the page that does not exist
}

// redrive brings a cause back with a canary, by the keyboard alone.
func redrive(t *testing.T, b *browser, app *shop, address string) {
	t.Helper()
	b.open(address)
	b.run(chromedp.KeyEvent(kb.Tab))
	assert.Equal(t, "Skip to the content", eval[string](b, `document.activeElement.textContent`))
	b.tabTo("dead letters of " + orders)
	b.enter()
	b.tabTo(fmt.Sprintf("Redrive… these %d", refused))
	b.enter()
	assert.Equal(t, fmt.Sprintf("Redrive %d letters?", refused), eval[string](b, `document.querySelector("h1").textContent`))
	assert.Contains(t, b.text(), "10 letters are sent first and watched")
	assert.Empty(t, app.had(), "nothing is sent before the confirmation")
	b.tabTo(fmt.Sprintf("Redrive %d letters", refused))
	b.enter()
	b.until(`document.getElementById("done").textContent === "10" && document.querySelector(".phase").textContent.includes("canary")`)
	assert.Equal(t, "polite", eval[string](b, `document.querySelector("[role=status]").ariaLive`))
	b.until(`Number(document.getElementById("done").textContent) > 10`)
	b.window(1100, 400, false)
	b.picture("redrive")
	b.until(`document.querySelector("[data-ended]") !== null`)
	text := b.text()
	assert.Contains(t, text, "Done.")
	assert.Equal(t, fmt.Sprint(refused), eval[string](b, `document.getElementById("done").textContent`))
	assert.Contains(t, eval[string](b, `document.querySelector("[role=status]").textContent`), fmt.Sprintf("Ended. %d letters were sent.", refused))
	want := map[string]int{}
	for i := range refused {
		want[fmt.Sprintf("order-%d", i)] = 1
	}
	require.Eventually(t, func() bool { return len(app.had()) >= refused }, patience, patience/1000)
	assert.Equal(t, want, app.had(), "the letters of the cause, each one once, and no others")
	b.follow("What is left in the queue")
	assert.Contains(t, b.text(), fmt.Sprintf("All %d letters of the queue", total+1-refused))
	assert.NotContains(t, b.text(), "connection refused")
}

// refusesForeignForms sends a form and opens a link as a foreign page would.
func refusesForeignForms(t *testing.T, b *browser, address string) {
	t.Helper()
	// A form of a page with another origin, in the browser.
	b.open("about:blank")
	b.leave(func() {
		eval[bool](b, fmt.Sprintf(`document.body.innerHTML = '<form method="post" action=%q></form>', document.forms[0].submit(), true`, address+"discard?queue=orders.dead&all=1"))
	})
	assert.Contains(t, b.text(), "does not come from this page")
	assert.NotContains(t, b.text(), "Open the view")
	b.refused(http.StatusForbidden)
	// A link, which opens with one click more.
	const view = "letters?queue=orders.dead"
	b.open("about:blank")
	b.leave(func() { eval[bool](b, fmt.Sprintf(`location.href = %q, true`, address+view)) })
	b.refused(http.StatusForbidden)
	b.follow("Open the view that was asked for")
	assert.Contains(t, b.text(), "the oldest first")
	b.clean()
}

// readOnly visits a page without --allow-write, and without its script.
func readOnly(t *testing.T, b *browser, address string) {
	t.Helper()
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.open(address)
	for _, want := range []string{"Read-only", "Without its script the page does not follow the queues.", orders} {
		assert.Contains(t, b.text(), want)
	}
}

// labelled fails the test if a field or button has no name for a screen reader.
func (b *browser) labelled() {
	b.t.Helper()
	assert.Empty(b.t, eval[[]string](b, `[...document.querySelectorAll("input:not([type=hidden])")].filter(e => !e.labels.length).concat(
		[...document.querySelectorAll("button, a")].filter(e => !e.textContent.trim())).map(e => e.outerHTML)`))
	assert.Equal(b.t, 1, eval[int](b, `document.querySelectorAll("h1").length`))
}

// Package page is a page for operators: an http.Handler that shows what waits, groups dead letters by cause, shows the
// failure record of a letter as a timeline, and redrives and discards letters. It works with the letters.Store of each
// backend, and Over makes one page of several. The command "wmretry ui" serves it, and an app can mount it in its own
// admin server, under any path that ends with a slash.
//
// # Safety
//
// The page has no login: an app that mounts it where others can reach it puts its own login before it. It only shows,
// unless Config.AllowWrite is set. Requests that another site has made are refused, whatever their method
// (http.CrossOriginProtection): a view of letters takes them from the broker for its time. An address that the operator
// has typed or bookmarked opens; a link on another site opens with one click more. Browsers that send no Sec-Fetch-Site
// (old ones, and all with a plain http address of another host) must send the Referer of the page for all but the
// board: a proxy must keep the Host header. A change, and the count before it, needs a POST request. A redrive or
// discard is confirmed on a page that shows the number of letters. Not more letters than that number are sent or
// removed; only where the count takes longer than Config.Timeout, the page asks for "at least" that number, and all
// selected letters are meant.
//
// All values are escaped by html/template. The pages have no inline script or style, load nothing from other hosts,
// and their Content-Security-Policy forbids both.
//
// # What a view costs
//
// A browser asks for depths once in two seconds while its tab is visible. That calls Status and takes no letter. A
// view of letters browses the queue once, when it is loaded, and looks at not more than Config.MaxLetters. What that
// means for other readers of the queue is in the documentation of the Store. Where a quorum queue has more letters,
// RabbitMQ up to 4.2 changes their order with each look, and so the pages of a list.
//
// The view of blocked keys asks the processes of a work queue with partitions (retry.Order), and waits two seconds for
// their answers at most. It needs the Store of RabbitMQ, and shows the commands that decide about a key.
//
// A redrive or discard runs in the process of the handler and goes on when the browser is closed. Page.Close stops
// all of them. The page keeps the summaries of the last 20.
package page

package page

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/each"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
	"github.com/tieredretry/watermill-retry/letters"
)

//go:embed static templates
var files embed.FS

const (
	// maxForm is the size of a request's body in bytes. A form has at most pageSize ids of 255 bytes, each byte
	// escaped.
	maxForm = 1 << 17
	// statusAge is how old a status may be.
	statusAge = time.Second
	// statusTimeout is how long a request waits for a status.
	statusTimeout = 10 * time.Second

	securityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
		"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)

// Page is the page. It is an http.Handler and safe for concurrent use.
type Page struct {
	config    Config
	templates *template.Template
	origins   http.CrossOriginProtection
	jobs      jobs
	turns     turns
	ask       command.Asker // nil where the Store has none

	stores map[string]*Page // the pages of the stores, where the page has several
	below  bool             // there is a page over this one

	statusLock sync.Mutex // guards what follows, and lets one request ask for a status at a time
	status     letters.Status
	statusErr  error
	statusAt   time.Time
	arrivals   arrivals

	tallyLock sync.Mutex
	tallies   map[string]*tally // the last look at each queue
}

// New returns the page. It does not connect.
func New(config Config) (*Page, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	p := &Page{
		config: config.withDefaults(), ask: command.AskerOf(config.Store),
		templates: template.Must(template.New("").Funcs(functions).ParseFS(files, "templates/*.html")),
	}
	p.jobs.logger = p.config.Logger
	p.jobs.ctx, p.jobs.cancel = context.WithCancel(context.Background())
	return p, nil
}

// Close stops the redrives and discards that run, and waits until they have ended. Letters that were not sent or
// removed stay. It can be called several times. The views go on.
func (p *Page) Close() error {
	for _, one := range p.stores {
		_ = one.Close() // it returns nil
	}
	if p.stores == nil {
		p.jobs.close()
	}
	return nil
}

// Summaries returns one line for each redrive and discard that the page has started and still keeps, the oldest
// first.
func (p *Page) Summaries() (lines []string) {
	for _, one := range slices.Backward(p.jobs.views()) {
		lines = append(lines, one.line())
	}
	for _, name := range slices.Sorted(maps.Keys(p.stores)) {
		of := each.Of(p.stores[name].Summaries(), func(line string) string { return name + ": " + line })
		lines = append(lines, of...)
	}
	return lines
}

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if one := p.storeOf(r.URL.Path); one != nil {
		one.ServeHTTP(w, r)
		return
	}
	header := w.Header()
	header.Set("Content-Security-Policy", securityPolicy)
	header.Set("X-Content-Type-Options", "nosniff")
	// Not no-referrer: with it, browsers send "Origin: null" with the page's own forms.
	header.Set("Referrer-Policy", "same-origin")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Frame-Options", "DENY") // browsers that do not know frame-ancestors
	if !p.config.answersTo(hostname(r.Host)) {
		http.Error(w, "This page does not answer to this host name. Use its IP address, or permit the name: "+
			"Config.Hosts, or wmretry ui --host.", http.StatusForbidden)
		return
	}
	if err := p.route(w, r); err != nil {
		p.fail(w, r, err)
	}
}

// A kind is what a view does.
type kind int

const (
	showing  kind = iota // shows what the page knows
	looking              // takes letters, or asks the processes
	changing             // changes something, or asks for a change: it counts the letters and keeps a confirmation
)

type view struct {
	kind   kind
	handle func(*Page, http.ResponseWriter, *http.Request) error
}

var views = map[string]view{
	"": {showing, (*Page).board}, "job": {showing, (*Page).job},
	"style.css": {showing, (*Page).static}, "script.js": {showing, (*Page).static}, "icon.svg": {showing, (*Page).static},
	"causes": {looking, (*Page).causes}, "letters": {looking, (*Page).list}, "letter": {looking, (*Page).letter},
	"test": {looking, (*Page).goTest}, "order": {looking, (*Page).order}, "keys": {looking, (*Page).keys},
	"redrive": {changing, (*Page).change}, "discard": {changing, (*Page).change}, "stop": {changing, (*Page).stop},
}

// route looks only at the last element of the path: all pages are beside each other, so that their relative links
// work under any path, with and without http.StripPrefix.
func (p *Page) route(w http.ResponseWriter, r *http.Request) error {
	_, name := path.Split(r.URL.Path)
	asked := views[name]
	if p.stores != nil && name != "causes" && (asked.kind != showing || name == "job") {
		asked.handle = nil // it is a view of single stores
	}
	isChange, methods := asked.kind == changing, []string{http.MethodGet, http.MethodHead}
	if isChange {
		methods = []string{http.MethodPost}
	}
	switch {
	case asked.handle == nil:
		return failure{http.StatusNotFound, "There is no such page.", nil}
	case p.isForeign(r) || asked.kind != showing && !isOwn(r):
		return errForeign
	case isChange && !p.config.AllowWrite:
		return failure{http.StatusForbidden, "This page only shows. Redrive and discard are off.", nil}
	case !slices.Contains(methods, r.Method):
		w.Header().Set("Allow", strings.Join(methods, ", "))
		return failure{http.StatusMethodNotAllowed, "This address does not take " + r.Method + " requests.", nil}
	case isChange:
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if err := r.ParseForm(); err != nil {
			return failure{http.StatusBadRequest, "The form cannot be read.", err}
		}
	}
	return asked.handle(p, w, r)
}

// isForeign reports whether another site has made the request, as a browser tells. GET is no exception: an image of a
// foreign page must not take letters.
func (p *Page) isForeign(r *http.Request) bool {
	as := *r
	as.Method = http.MethodPost
	return p.origins.Check(&as) != nil
}

// isOwn reports whether the request comes from this page, or was typed by the operator, as a browser tells. Old
// browsers send no Sec-Fetch-Site, and no browser sends it to a plain http address of another host. A foreign page can
// make a browser leave out the Referer, but not send a false one.
func isOwn(r *http.Request) bool {
	if r.Header.Get("Sec-Fetch-Site") != "" || r.Header.Get("Origin") != "" {
		return true // isForeign looks at them
	}
	from, err := url.Parse(r.Referer())
	return err == nil && from.Host != "" && strings.EqualFold(from.Host, r.Host)
}

// static serves the script, the style and the icon. Their types do not depend on the tables of the host.
func (p *Page) static(w http.ResponseWriter, r *http.Request) error {
	name := path.Base(r.URL.Path)
	w.Header().Set("Content-Type", map[string]string{".css": "text/css", ".js": "text/javascript",
		".svg": "image/svg+xml"}[path.Ext(name)]+"; charset=utf-8")
	http.ServeFileFS(w, r, files, "static/"+name)
	return nil
}

// failure is an error with the status and the text of its page.
type failure struct {
	status int
	text   string
	cause  error
}

func (f failure) Error() string { return f.text }
func (f failure) Unwrap() error { return f.cause }

// errForeign is the error of a request that another site may have made.
var errForeign = failure{http.StatusForbidden, "This request does not come from this page: another site may have " +
	"made it. Nothing was done.", nil}

type errorView struct {
	Status       int
	Text, Detail string
	Open         string // the address of a refused view: a click on it comes from this page
}

// fail answers with a page that has the error.
func (p *Page) fail(w http.ResponseWriter, r *http.Request, err error) {
	shown := errorView{Status: http.StatusBadGateway, Text: explain(err)}
	var known failure
	switch {
	case errors.As(err, &known):
		shown.Status, shown.Text, shown.Detail = known.status, known.text, explain(known.cause)
	case errors.Is(err, letters.ErrNoQueue):
		shown.Status = http.StatusNotFound
	}
	if detail := err.Error(); detail != shown.Text {
		shown.Detail = detail
	}
	_, name := path.Split(r.URL.Path)
	if known == errForeign && views[name].kind != changing && r.Method != http.MethodPost {
		shown.Open = "./" + name + "?" + r.URL.RawQuery
	}
	if r.Context().Err() == nil && shown.Status >= http.StatusInternalServerError &&
		shown.Status != http.StatusServiceUnavailable {
		p.config.Logger.Error("The dead-letter page cannot answer", err, watermill.LogFields{"path": r.URL.Path})
	}
	p.render(w, shown.Status, "error.html", http.StatusText(shown.Status), shown)
}

// render writes a page. A template that fails must not leave half of a page.
func (p *Page) render(w http.ResponseWriter, status int, name, title string, data any) {
	var text bytes.Buffer
	err := p.templates.ExecuteTemplate(&text, name, struct {
		Title      string
		AllowWrite bool
		Below      bool // there is a page over this one
		Data       any
	}{title, p.config.AllowWrite, p.below, data})
	if err != nil {
		p.config.Logger.Error("The dead-letter page cannot be written", err, watermill.LogFields{"template": name})
		http.Error(w, "The page cannot be written.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(text.Bytes()) // the browser may be gone
}

// renderLive writes a page that follows. With the parameter part it is only what changes.
func (p *Page) renderLive(w http.ResponseWriter, r *http.Request, name, title string, data any) {
	kind := ".html"
	if r.URL.Query().Get("part") != "" {
		kind = "-part"
	}
	p.render(w, http.StatusOK, name+kind, title, data)
}

// current returns the status of the last second. With an error it returns the last status that there was.
func (p *Page) current(ctx context.Context) (letters.Status, error) {
	p.statusLock.Lock()
	defer p.statusLock.Unlock()
	if !p.statusAt.IsZero() && time.Since(p.statusAt) < statusAge {
		return p.status, p.statusErr
	}
	// A browser that goes away must not fail the requests that wait for this answer.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statusTimeout)
	defer cancel()
	status, err := p.config.Status(ctx)
	if err == nil {
		p.status = status
		p.arrivals.see(status)
	}
	p.statusErr, p.statusAt = err, time.Now()
	return p.status, err
}

// explain returns the text of an error, with what to do about the known ones. That of nil is empty.
func explain(err error) string {
	for _, known := range [...]struct {
		err  error
		text string
	}{
		{nil, ""},
		{letters.ErrBusy, "Another redrive or discard runs on this queue. Wait until it has ended; after a kill, until " +
			"its lock has."},
		{letters.ErrRedead, "Stopped, because redriven letters have died again. The others were not sent. Look at " +
			"what the letters say now, and repair that first."},
		{letters.ErrNoQueue, "The queue does not exist."},
		{letters.ErrNoTarget, "The work queue of a letter does not exist or is unknown. The letter stays. Start " +
			"the app that consumes the queue. “wmretry dead redrive --to” sends selected letters to another one."},
		{letters.ErrClosed, "The connection to the broker is closed."},
		{context.DeadlineExceeded, "The broker did not answer in time."},
		{context.Canceled, "Stopped. Letters that were not sent or removed stay."},
	} {
		if errors.Is(err, known.err) {
			return known.text
		}
	}
	return err.Error()
}

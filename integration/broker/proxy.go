package broker

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/url"
	"strconv"
	"sync"
	"time"
)

// A Network is a proxy between an app and the broker. When it is stopped, the broker is unreachable: connections break,
// and new ones are refused. Its methods may not be called at the same time.
type Network struct {
	Upstream string // the broker; it may be another one after a stop
	address  string

	running  sync.WaitGroup
	mu       sync.Mutex
	listener net.Listener // nil: stopped
	stop     context.CancelFunc
	links    map[*link]bool
	lines    [2]Line       // from the app, from the broker
	changed  chan struct{} // closed when the lines change
}

// A Line is what becomes of the data that one side sends. The zero value passes it on.
type Line struct {
	Latency time.Duration
	Rate    int  // bytes a second; 0: as they come
	Lost    bool // the data does not arrive, and the connections break when that is over
}

// NewProxy returns a network between an app and the broker at an address, and the address for the app.
func NewProxy(address string) (*Network, string, error) {
	uri, err := url.Parse(address)
	if err != nil {
		return nil, "", errors.New("the broker's URL is invalid")
	}
	p := &Network{Upstream: net.JoinHostPort(uri.Hostname(), cmp.Or(uri.Port(), "5672")), links: map[*link]bool{},
		changed: make(chan struct{})}
	for range 100 {
		// No system gives such a port to a client. Else one that dials while the proxy is stopped could get its port.
		p.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(28_000+rand.IntN(4_000)))
		if err = p.Start(); err == nil {
			uri.Host = p.address
			return p, uri.String(), nil
		}
	}
	return nil, "", err
}

// Start makes the broker reachable again.
func (p *Network) Start() error {
	listener, err := net.Listen("tcp", p.address)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	p.mu.Lock()
	p.listener, p.stop = listener, stop
	p.mu.Unlock()
	p.running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			p.running.Go(func() { p.connect(ctx, client) })
		}
	})
	return nil
}

// Stop returns when all its goroutines have ended.
func (p *Network) Stop() {
	p.mu.Lock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
		p.stop()
		p.breakLinks()
	}
	p.mu.Unlock()
	p.running.Wait()
}

// Disturb changes what becomes of the data that the app and the broker send, on open connections and new ones.
func (p *Network) Disturb(app, broker Line) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lines[0].Lost && !app.Lost || p.lines[1].Lost && !broker.Lost {
		p.breakLinks()
	}
	p.lines = [2]Line{app, broker}
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Network) breakLinks() {
	for l := range p.links {
		l.end()
	}
	clear(p.links)
}

func (p *Network) line(side int) (Line, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lines[side], p.changed
}

// connect connects a client to the broker until one of them ends the connection, or it breaks.
func (p *Network) connect(ctx context.Context, client net.Conn) {
	var dialer net.Dialer
	upstream, err := dialer.DialContext(ctx, "tcp", p.Upstream)
	if err != nil {
		_ = client.Close()
		return
	}
	ended, end := context.WithCancel(ctx)
	l := &link{Network: p, sides: [2]net.Conn{client, upstream}, Context: ended, cancel: end}
	defer l.end()
	p.mu.Lock()
	p.links[l] = true // of one that was stopped meanwhile: its context has ended
	p.mu.Unlock()
	for side := range l.sides {
		chunks := make(chan chunk, 1024)
		p.running.Go(func() { l.read(side, chunks) })
		p.running.Go(func() { l.write(side, chunks) })
	}
	<-l.Done()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// A link is one connection of an app. It ends as a whole.
type link struct {
	*Network
	context.Context
	cancel context.CancelFunc
	sides  [2]net.Conn // the app, the broker
}

func (l *link) end() {
	l.cancel()
	for _, side := range l.sides {
		_ = side.Close()
	}
}

// A chunk is data of one side.
type chunk struct {
	data []byte
	read time.Time
}

func (l *link) read(side int, to chan<- chunk) {
	defer close(to)
	for {
		buffer := make([]byte, 16<<10)
		n, err := l.sides[side].Read(buffer)
		select {
		case to <- chunk{buffer[:n], time.Now()}:
		case <-l.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// write passes on the data of one side. It ends the connection after the last of it.
func (l *link) write(side int, from <-chan chunk) {
	defer l.end()
	for c := range from {
		for len(c.data) > 0 {
			line, changed := l.line(side)
			part := c.data
			pause := line.Latency - time.Since(c.read)
			switch {
			case line.Lost:
				c.data = nil
				continue
			case pause > 0:
				part = nil
			case line.Rate > 0:
				part = part[:min(len(part), max(1, line.Rate/10))]
				pause = time.Duration(len(part)) * time.Second / time.Duration(line.Rate)
			}
			if _, err := l.sides[1-side].Write(part); err != nil {
				return
			}
			c.data = c.data[len(part):]
			if pause <= 0 {
				continue
			}
			select {
			case <-time.After(pause):
			case <-changed:
			case <-l.Done():
				return
			}
		}
	}
}

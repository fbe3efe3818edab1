package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"golang.org/x/term"

	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// connectTimeout is how long a command tries to connect at the start.
const connectTimeout = 10 * time.Second

// config is the configuration of the Store, from flags and environment. It asks once for a password where one is
// missing.
func (e *env) config() (deadletter.Config, error) {
	if e.configured != nil {
		return *e.configured, nil
	}
	address, err := e.address()
	if err != nil {
		return deadletter.Config{}, err
	}
	if e.tls, err = e.tlsConfig(); err != nil {
		return deadletter.Config{}, err
	}
	management, err := e.managementAddress(address)
	if err != nil {
		return deadletter.Config{}, err
	}
	config := deadletter.Config{URI: address, TLS: e.tls, Prefix: e.prefix(), Management: management,
		AnyLimit: e.flags.anyLimit}
	if err := config.Validate(); err != nil {
		return deadletter.Config{}, exit(codeUsage, err)
	}
	e.configured = &config
	return config, nil
}

var errPasswordInArgs = "%s has a password: other users of this machine can read the arguments of a process. " +
	"Put the whole address into %s, or leave the password out and use --password-file, or type it when asked"

// address is the address of the broker with its password.
func (e *env) address() (string, error) {
	address, of := e.flags.uri, "--uri"
	if address == "" {
		if address, of = os.Getenv("AMQP_URL"), "AMQP_URL"; address == "" {
			return "", usage("no broker is named: set AMQP_URL to an address with user and password, or use --uri " +
				"amqp://user@host:5672/")
		}
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "amqp" && u.Scheme != "amqps" || u.Host == "" {
		// The text may have a password.
		return "", usage("%s is not an address of a broker: it must be like amqp://user@host:5672/ (or amqps://), "+
			"with reserved characters percent-encoded", of)
	}
	password, has := u.User.Password()
	switch {
	case has && of == "--uri":
		return "", usage(errPasswordInArgs, "--uri", "AMQP_URL")
	case e.flags.passwordFile != "":
		if u.User == nil || u.User.Username() == "" {
			return "", usage("--password-file is set, and %s names no user: use amqp://user@host:5672/", of)
		}
		if password, err = readPassword(e.flags.passwordFile); err != nil {
			return "", err
		}
		u.User = url.UserPassword(u.User.Username(), password)
	case !has && u.User != nil && u.User.Username() != "":
		if password, err = e.askPassword(u); err != nil {
			return "", err
		}
		u.User = url.UserPassword(u.User.Username(), password)
	}
	e.password = password
	return u.String(), nil
}

func readPassword(file string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", usage("--password-file: %w", err)
	}
	password := string(bytes.TrimRight(content, "\r\n"))
	if password == "" {
		return "", usage("--password-file: %s is empty", safe(file))
	}
	return password, nil
}

func (e *env) askPassword(u *url.URL) (string, error) {
	if !e.inTerminal || !e.errTerminal {
		return "", usage("the address names the user %s and no password, and there is no terminal to ask on: use "+
			"--password-file, or AMQP_URL with the password", safe(u.User.Username()))
	}
	_, _ = fmt.Fprintf(e.stderr, "Password of %s at %s: ", safe(u.User.Username()), safe(u.Host))
	password, err := term.ReadPassword(int(e.stdin.Fd()))
	_, _ = fmt.Fprintln(e.stderr)
	if err != nil {
		return "", fmt.Errorf("the password cannot be read: %w", err)
	}
	return string(password), nil
}

func (e *env) tlsConfig() (*tls.Config, error) {
	f := e.flags
	if f.caFile == "" && f.certFile == "" && f.keyFile == "" && f.serverName == "" && !f.insecure {
		return nil, nil //nolint:nilnil // no settings
	}
	config := &tls.Config{ServerName: f.serverName, MinVersion: tls.VersionTLS12}
	config.InsecureSkipVerify = f.insecure //nolint:gosec // the user's flag
	if f.caFile != "" {
		pem, err := os.ReadFile(f.caFile)
		if err != nil {
			return nil, usage("--ca-file: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, usage("--ca-file: %s has no certificate in PEM form", safe(f.caFile))
		}
	}
	if (f.certFile == "") != (f.keyFile == "") {
		return nil, usage("--cert-file and --key-file belong together: set both")
	}
	if f.certFile != "" {
		pair, err := tls.LoadX509KeyPair(f.certFile, f.keyFile)
		if err != nil {
			return nil, usage("--cert-file, --key-file: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// managementAddress is the address of the management API. Where none is named it is guessed; it may not answer.
func (e *env) managementAddress(broker string) (string, error) {
	if address := e.flags.management; address != "" {
		if u, err := url.Parse(address); err == nil && u.User != nil {
			if _, has := u.User.Password(); has {
				return "", usage(errPasswordInArgs, "--management", "AMQP_MANAGEMENT_URL")
			}
		}
		return address, nil
	}
	if address := os.Getenv("AMQP_MANAGEMENT_URL"); address != "" {
		return address, nil
	}
	uri, err := amqp091.ParseURI(broker)
	if err != nil {
		return "", usage("the address of the broker has a port or parameter that is not a number, or reserved " +
			"characters that are not percent-encoded")
	}
	scheme := map[string]string{"amqp": "http", "amqps": "https"}[uri.Scheme]
	return scheme + "://" + net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port+10_000)), nil
}

// reach connects once and closes the connection.
func (e *env) reach(ctx context.Context, config deadletter.Config) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	result := make(chan error, 1)
	go func() {
		connection, err := amqp091.DialConfig(config.URI, amqp091.Config{
			TLSClientConfig: config.TLS, Dial: func(network, address string) (net.Conn, error) {
				connection, err := (&net.Dialer{}).DialContext(ctx, network, address)
				if err == nil {
					deadline, _ := ctx.Deadline()
					err = connection.SetDeadline(deadline) // of the handshake
				}
				return connection, err
			},
		})
		if err == nil {
			_ = connection.CloseDeadline(time.Now().Add(time.Second))
		}
		result <- err
	}()
	var err error
	select {
	case err = <-result:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err == nil {
		return nil
	}
	return e.unreachable(config.URI, err)
}

// unreachable says what to do about a connection that cannot be made.
func (e *env) unreachable(address string, err error) error {
	uri, _ := amqp091.ParseURI(address)
	place := net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))
	var (
		refused *amqp091.Error
		host    *net.DNSError
		timeout net.Error
	)
	advice := "is RabbitMQ running there, and is the port that of AMQP (5672, or 5671 with TLS)?"
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &refused) && (refused.Code == amqp091.AccessRefused ||
		errors.Is(err, amqp091.ErrCredentials) || errors.Is(err, amqp091.ErrSASL)):
		advice = fmt.Sprintf("check the password of %q (AMQP_URL or --password-file). The user guest may log in "+
			"only from the broker's own host, unless the broker permits more", uri.Username)
	case errors.As(err, &refused) && refused.Code != amqp091.FrameError: // that is a connection which breaks
		advice = fmt.Sprintf("check the virtual host %q, and that the user %q has permissions for it: rabbitmqctl "+
			"list_permissions -p %q", uri.Vhost, uri.Username, uri.Vhost)
	case errors.As(err, &host):
		advice = "check the name of the host"
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout():
		err = fmt.Errorf("no answer within %v", connectTimeout)
	case strings.Contains(err.Error(), "first record does not look like a TLS handshake"):
		advice = "the port has no TLS: use that of TLS (usually 5671), or amqp:// in place of amqps://"
	case strings.Contains(err.Error(), "tls:") || strings.Contains(err.Error(), "x509:"):
		advice = "check --ca-file, --cert-file, --key-file and --server-name"
	}
	return fmt.Errorf("cannot connect to %s: %v; %s", place, err, advice) // err is explained
}

var userinfo = regexp.MustCompile(`://([^/@\s:]*):[^\s]*@`)

// printable returns a text of several lines for a terminal. It can have texts of the broker, and passwords.
func (e *env) printable(s string) string { return safeLines(e.scrub(s)) }

// scrub removes passwords from a text.
func (e *env) scrub(s string) string {
	s = userinfo.ReplaceAllString(s, "://$1:***@")
	// A short password is a part of many words.
	if len(e.password) >= 4 && e.password != "guest" {
		s = strings.ReplaceAll(s, e.password, "***")
		s = strings.ReplaceAll(s, url.QueryEscape(e.password), "***")
	}
	return s
}

package cli

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/backend"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// The variables with the address.
const (
	urlVariable    = "WMRETRY_URL"
	rabbitVariable = "AMQP_URL" // the address of RabbitMQ, where the other one is not set
)

// kindOf returns the backend that the arguments or the environment name, before the arguments are read: commands and
// their help depend on it. It is RabbitMQ where none is named.
func kindOf(args []string) *backend.Kind {
	early := pflag.NewFlagSet("", pflag.ContinueOnError)
	early.ParseErrorsWhitelist.UnknownFlags = true
	early.BoolP("help", "h", false, "")
	e := &env{}
	early.StringArrayVar(&e.flags.urls, "url", nil, "")
	_ = early.Parse(args)
	if addresses, _, err := e.addresses(); err == nil {
		return cmp.Or(backend.KindOf(addresses[0]), backend.RabbitMQ)
	}
	return backend.RabbitMQ
}

// withStore connects once, calls a function with the Store, and closes it.
func (e *env) withStore(ctx context.Context, use func(*backend.Store) error) error {
	addresses, of, err := e.addresses()
	if err != nil {
		return err
	}
	if len(addresses) > 1 {
		return usage("%s names %d backends: only `wmretry ui` takes several", of, len(addresses))
	}
	config, err := e.configOf(addresses[0], of)
	if err != nil {
		return err
	}
	store, err := open(ctx, config)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	e.where = config.Address.Where()
	return use(store)
}

// open opens the Store. A fault of a flag or the address ends the command as other misuse does.
func open(ctx context.Context, config backend.Config) (*backend.Store, error) {
	store, err := backend.Open(ctx, config)
	var fault backend.Fault
	if errors.As(err, &fault) {
		err = exit(codeUsage, fault)
	}
	return store, err
}

// withRabbitMQ is withStore for commands that only RabbitMQ has.
func (e *env) withRabbitMQ(ctx context.Context, use func(*deadletter.Store) error) error {
	return e.withStore(ctx, func(store *backend.Store) error { return use(store.Rabbit) })
}

// addresses returns those that are named, and by what.
func (e *env) addresses() (all []string, of string, err error) {
	all, of = e.flags.urls, "--url"
	for _, variable := range []string{urlVariable, rabbitVariable} {
		if len(all) == 0 {
			all, of = strings.Fields(os.Getenv(variable)), variable
		}
	}
	if len(all) == 0 {
		err = usage("no backend is named: set %s to an address with user and password, or use --url: %s", urlVariable,
			backend.Examples())
	}
	return all, of, err
}

// configOf returns the configuration for an address of a flag or variable. It asks for a password where one is missing.
func (e *env) configOf(text, of string) (backend.Config, error) {
	config := backend.Config{Prefix: e.prefix(), Group: e.flags.group, Table: e.flags.table, AnyLimit: e.flags.anyLimit,
		Logger: e.logger()}
	var err error
	if config.Address, err = e.address(text, of); err != nil {
		return config, err
	}
	if config.TLS, err = e.tlsConfig(); err != nil {
		return config, err
	}
	if config.Address.Kind == backend.RabbitMQ {
		if config.Management, err = e.managementAddress(config.Address); err != nil {
			return config, err
		}
		if err := config.Rabbit().Validate(); err != nil {
			return config, exit(codeUsage, err)
		}
	}
	return config, nil
}

var errPasswordInArgs = "%s has a password: other users of this machine can read the arguments of a process. " +
	"Put the whole address into %s, or leave the password out and use --password-file, or type it when asked"

// address is an address with its password.
func (e *env) address(text, of string) (backend.Address, error) {
	address, err := backend.Parse(text)
	if err != nil {
		return address, usage("%s %w", of, err)
	}
	user, password, has := address.User()
	switch {
	case has && of == "--url":
		return address, usage(errPasswordInArgs, "--url", urlVariable)
	case e.flags.passwordFile != "" && user == "":
		return address, usage("--password-file is set, and %s names no user: use %s", of, address.Kind.Example)
	case e.flags.passwordFile != "":
		password, err = readPassword(e.flags.passwordFile)
		address = address.With(password)
	case address.NeedsPassword():
		password, err = e.askPassword(user, address.Place())
		address = address.With(password)
	}
	e.passwords = append(e.passwords, password)
	return address, err
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

func (e *env) askPassword(user, place string) (string, error) {
	if !e.inTerminal || !e.errTerminal {
		// the name is not shown: other programs of NATS have a token in its place
		return "", usage("the address names a user and no password, and there is no terminal to ask on: use "+
			"--password-file, or %s with the password", urlVariable)
	}
	_, _ = fmt.Fprintf(e.stderr, "Password of %s at %s: ", safe(user), safe(place))
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
		read := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(f.certFile, f.keyFile)
			return &pair, err
		}
		if _, err := read(nil); err != nil {
			return nil, usage("--cert-file, --key-file: %w", err)
		}
		config.GetClientCertificate = read // for each connection: the page outlives a certificate
	}
	return config, nil
}

// managementAddress is the address of the management API. Where none is named it is guessed; it may not answer.
func (e *env) managementAddress(broker backend.Address) (string, error) {
	if address := e.flags.management; address != "" {
		if u, err := url.Parse(address); err == nil {
			if _, has := u.User.Password(); has {
				return "", usage(errPasswordInArgs, "--management", "AMQP_MANAGEMENT_URL")
			}
		}
		return address, nil
	}
	if address := os.Getenv("AMQP_MANAGEMENT_URL"); address != "" {
		return address, nil
	}
	e.guesses = true
	address, err := backend.ManagementOf(broker)
	if err != nil {
		return "", exit(codeUsage, err)
	}
	return address, nil
}

var userinfo = regexp.MustCompile(`://([^/@\s:]*):[^\s]*@`)

// printable returns a text of several lines for a terminal. It can have texts of the broker, and passwords.
func (e *env) printable(s string) string { return safeLines(e.scrub(s)) }

// scrub removes passwords from a text.
func (e *env) scrub(s string) string {
	s = userinfo.ReplaceAllString(s, "://$1:***@")
	for _, password := range e.passwords {
		// A short password is a part of many words.
		if len(password) >= 4 && password != "guest" {
			s = strings.ReplaceAll(s, password, "***")
			s = strings.ReplaceAll(s, url.QueryEscape(password), "***")
		}
	}
	return s
}

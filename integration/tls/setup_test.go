// Package tls_test runs complete apps over amqps, with a private CA and client certificates, and asserts that no password is
// logged, returned or exported.
package tls_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
)

// authority is a certificate authority for one test.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// signed makes a key, and its certificate from a template. An authority without a key signs for itself.
func (a authority) signed(t testing.TB, template *x509.Certificate) (der []byte, key *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	if a.key == nil {
		a = authority{template, key}
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	der, err = x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	require.NoError(t, err)
	return der, key
}

func newAuthority(t testing.TB, name string) authority {
	t.Helper()
	der, key := authority{}.signed(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	certificate, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return authority{certificate, key}
}

func (a authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// issue makes a certificate for a client, or for a server on this machine.
func (a authority) issue(t testing.TB, name string, usage x509.ExtKeyUsage) tls.Certificate {
	t.Helper()
	der, key := a.signed(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// listener is a TLS listener of the broker, on a port of its own, that requires client certificates of the CA.
type listener struct {
	ca   authority
	port string // where an app reaches it
}

// listen starts a listener, until the test ends.
func listen(t testing.TB) listener {
	t.Helper()
	ca := newAuthority(t, "private CA of the test")
	server := ca.issue(t, "broker", x509.ExtKeyUsageServerAuth)
	key, err := x509.MarshalECPrivateKey(server.PrivateKey.(*ecdsa.PrivateKey))
	require.NoError(t, err)

	// In files: with inline certificates the broker's management API answers 500 while the listener exists.
	files := "/tmp/" + broker.Name(t, "watermill-retry") + "-"
	var written []string
	for file, block := range map[string]pem.Block{
		"ca.pem":   {Type: "CERTIFICATE", Bytes: ca.certificate.Raw},
		"cert.pem": {Type: "CERTIFICATE", Bytes: server.Certificate[0]},
		"key.pem":  {Type: "EC PRIVATE KEY", Bytes: key},
	} {
		written = append(written, fmt.Sprintf(`ok = file:write_file("%s%s", base64:decode(<<"%s">>))`,
			files, file, base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&block))))
	}
	at, port := `"127.0.0.1", 0`, "ranch:get_port({acceptor, {127, 0, 0, 1}, 0})" // Erlang terms in the broker's network
	if published := os.Getenv("AMQP_TLS_ADDRESS"); published != "" {              // the one port of a broker in a container
		at = `"0.0.0.0", 5671`
		_, port, err = net.SplitHostPort(published)
		require.NoError(t, err, "AMQP_TLS_ADDRESS")
	}
	t.Cleanup(func() {
		assert.Equal(t, "ok", strings.TrimSpace(broker.Ctl(t, "eval", fmt.Sprintf(
			`[file:delete("%s" ++ F) || F <- ["ca.pem", "cert.pem", "key.pem"]], rabbit_networking:stop_tcp_listener({%s}).`, files, at))))
	})
	l := listener{ca, strings.TrimSpace(broker.Ctl(t, "eval", fmt.Sprintf(
		`%[4]s, rabbit_networking:ensure_ssl(), ok = rabbit_networking:start_ssl_listener({%[1]s}, `+
			`[{cacertfile, "%[2]sca.pem"}, {certfile, "%[2]scert.pem"}, {keyfile, "%[2]skey.pem"}, {verify, verify_peer}, `+
			`{fail_if_no_peer_cert, true}], 2), %[3]s.`, at, files, port, strings.Join(written, ", "))))}
	uri, err := url.Parse(l.uri(t, "localhost"))
	require.NoError(t, err)
	connection, err := net.DialTimeout("tcp", uri.Host, 10*time.Second)
	require.NoError(t, err, "the broker listens for TLS on {%s} of its own network, which is not reached from here: where it is in a "+
		"container, publish its port 5671 and set AMQP_TLS_ADDRESS to that address", at)
	require.NoError(t, connection.Close())
	return l
}

// uri returns the broker's address over TLS.
func (l listener) uri(t testing.TB, host string) string {
	t.Helper()
	uri, err := url.Parse(broker.URL(t))
	require.NoError(t, err)
	uri.Scheme, uri.Host = "amqps", net.JoinHostPort(host, l.port)
	return uri.String()
}

// client returns a TLS configuration that the broker accepts.
func (l listener) client(t testing.TB) *tls.Config {
	t.Helper()
	return &tls.Config{RootCAs: l.ca.pool(), Certificates: []tls.Certificate{l.ca.issue(t, "app", x509.ExtKeyUsageClientAuth)}, MinVersion: tls.VersionTLS12}
}

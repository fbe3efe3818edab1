package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/backend"
)

// TestTheCommandsAreThoseOfTheAddress: they are made before the flags are read, and must not be those of another backend
// than the one that is opened.
func TestTheCommandsAreThoseOfTheAddress(t *testing.T) {
	for _, row := range []struct{ variable, rabbit, flag, want string }{
		{"", "", "", "RabbitMQ"},
		{"", "amqp://broker", "", "RabbitMQ"},
		{"", "redis://a", "", "Redis"},
		{"nats://a redis://b", "amqp://broker", "", "NATS"},
		{"nats://a", "amqp://broker", "kafka://c", "Kafka"},
		{"nonsense", "redis://a", "", "RabbitMQ"},
	} {
		t.Setenv(urlVariable, row.variable)
		t.Setenv(rabbitVariable, row.rabbit)
		args := []string{"dead", "list", "orders", "--reason", "x"}
		if row.flag != "" {
			args = append(args, "--url", row.flag)
		}
		assert.Equal(t, row.want, kindOf(args).Name, row)
	}
}

// TestAnAddressThatWasDerivedIsExplained: the user has never written its port.
func TestAnAddressThatWasDerivedIsExplained(t *testing.T) {
	silent := errors.New("the management API at broker:15672 does not answer")
	assert.Equal(t, silent.Error(), (&env{}).failure(silent))
	e := &env{}
	address, err := backend.Parse("amqp://broker:5673/")
	require.NoError(t, err)
	t.Setenv("AMQP_MANAGEMENT_URL", "")
	derived, err := e.managementAddress(address)
	require.NoError(t, err)
	assert.Equal(t, "http://broker:15673", derived)
	assert.Contains(t, e.failure(silent), "its port plus 10,000: name another one with --management")
	assert.NotContains(t, e.failure(errors.New("refused")), "--management")
}

// TestAClientCertificateIsReadAgain: the page runs longer than a certificate is valid.
func TestAClientCertificateIsReadAgain(t *testing.T) {
	folder := t.TempDir()
	e := &env{}
	e.flags.certFile, e.flags.keyFile = filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	write := func(serial int64) {
		t.Helper()
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		template := &x509.Certificate{SerialNumber: big.NewInt(serial)}
		certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		require.NoError(t, err)
		private, err := x509.MarshalPKCS8PrivateKey(key)
		require.NoError(t, err)
		for file, block := range map[string]*pem.Block{e.flags.certFile: {Type: "CERTIFICATE", Bytes: certificate},
			e.flags.keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
			require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
		}
	}
	_, err := e.tlsConfig()
	require.ErrorContains(t, err, "--cert-file, --key-file")
	write(1)
	config, err := e.tlsConfig()
	require.NoError(t, err)
	for _, serial := range []int64{1, 2} {
		write(serial)
		pair, err := config.GetClientCertificate(nil)
		require.NoError(t, err)
		assert.Equal(t, serial, pair.Leaf.SerialNumber.Int64())
	}
}

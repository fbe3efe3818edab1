package conformance

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/xdg-go/scram"

	"github.com/tieredretry/watermill-retry/backends/conformance/process"
	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
	"github.com/tieredretry/watermill-retry/backends/kafkaretry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

// securedKafka is a cluster with TLS, SASL/SCRAM and ACLs.
type securedKafka struct {
	t       *testing.T
	brokers []string
	trusted *x509.CertPool
	admin   sarama.ClusterAdmin
}

func startSecuredKafka(t *testing.T) *securedKafka {
	t.Helper()
	s := &securedKafka{t: t, trusted: x509.NewCertPool()}
	keystore := filepath.Join(t.TempDir(), "keystore.pem")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kafka"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	require.NoError(t, os.WriteFile(keystore,
		append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), chain...), 0o600))
	require.True(t, s.trusted.AppendCertsFromPEM(chain))

	admin := s.client("admin")
	admin.Net.SASL.Mechanism, admin.Version = sarama.SASLTypePlaintext, sarama.V2_7_0_0
	s.brokers, _ = startKafkaCluster(t, 1, admin,
		"listener.security.protocol.map=PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
		"ssl.keystore.type=PEM", "ssl.keystore.location="+keystore,
		"ssl.truststore.type=PEM", "ssl.truststore.location="+keystore,
		"sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN", "sasl.mechanism.inter.broker.protocol=PLAIN",
		`listener.name.plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required `+
			`username="admin" password="admin" user_admin="admin";`,
		"listener.name.plaintext.scram-sha-512.sasl.jaas.config="+
			"org.apache.kafka.common.security.scram.ScramLoginModule required;",
		"authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users=User:admin;User:ANONYMOUS")
	s.admin, err = sarama.NewClusterAdmin(s.brokers, admin)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.admin.Close() })
	_, err = s.admin.UpsertUserScramCredentials([]sarama.AlterUserScramCredentialsUpsert{{
		Name: "billing", Mechanism: sarama.SCRAM_MECHANISM_SHA_512, Iterations: 4096, Salt: []byte("salt"),
		Password: []byte("billing"),
	}})
	require.NoError(t, err)
	return s
}

// client is the configuration of a user, whose password is its name.
func (s *securedKafka) client(user string) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V2_2_0_0
	config.Net.TLS.Enable, config.Net.TLS.Config = true, &tls.Config{RootCAs: s.trusted}
	config.Net.SASL.Enable, config.Net.SASL.Mechanism = true, sarama.SASLTypeSCRAMSHA512
	config.Net.SASL.User, config.Net.SASL.Password = user, user
	config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{} }
	config.Metadata.Retry.Max = 1 // where a right is missing, that stays
	return config
}

type scramClient struct{ *scram.ClientConversation }

func (c *scramClient) Begin(user, password, authorization string) error {
	client, err := scram.SHA512.NewClient(user, password, authorization)
	if err == nil {
		c.ClientConversation = client.NewConversation()
	}
	return err
}

// kafkaRight is one that a command of the package documentation adds.
type kafkaRight struct {
	sarama.Resource
	sarama.Acl
}

// kafkaRights are those of the package documentation.
func kafkaRights(t *testing.T) (all []kafkaRight) {
	t.Helper()
	page, err := os.ReadFile("../kafkaretry/doc.go")
	require.NoError(t, err)
	_, section, found := strings.Cut(strings.ReplaceAll(string(page), "\n//\t", "\n"), "// # Rights")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n// # ")
	command := regexp.MustCompile(`(?m)^kafka-acls\.sh .* --add --allow-principal User:billing (.*)$`)
	for _, line := range command.FindAllStringSubmatch(strings.ReplaceAll(section, "\\\n", ""), -1) {
		one := kafkaRight{Acl: sarama.Acl{
			Principal: "User:billing", Host: "*", PermissionType: sarama.AclPermissionAllow,
		}}
		one.ResourcePatternType = sarama.AclPatternLiteral
		var operations []string
		words := strings.Fields(line[1])
		require.Zero(t, len(words)%2, line)
		for i := 0; i < len(words); i += 2 {
			switch value := words[i+1]; words[i] {
			case "--operation":
				operations = append(operations, value)
			case "--topic":
				one.ResourceType, one.ResourceName = sarama.AclResourceTopic, value
			case "--group":
				one.ResourceType, one.ResourceName = sarama.AclResourceGroup, value
			case "--resource-pattern-type":
				require.NoError(t, one.ResourcePatternType.UnmarshalText([]byte(value)))
			default:
				require.Fail(t, "an unknown flag", words[i])
			}
		}
		for _, operation := range operations {
			right := one
			require.NoError(t, right.Operation.UnmarshalText([]byte(operation)))
			all = append(all, right)
		}
	}
	require.NotEmpty(t, all)
	return all
}

func (r kafkaRight) filter() sarama.AclFilter {
	return sarama.AclFilter{
		ResourceType: r.ResourceType, ResourceName: &r.ResourceName, ResourcePatternTypeFilter: r.ResourcePatternType,
		Principal: &r.Principal, Operation: r.Operation, PermissionType: r.PermissionType,
	}
}

func (s *securedKafka) grant(all ...kafkaRight) {
	s.t.Helper()
	for _, right := range all {
		require.NoError(s.t, s.admin.CreateACL(right.Resource, right.Acl))
		wait.Until(s.t, func() bool { return s.has(right) }, "the right is there")
	}
}

func (s *securedKafka) revoke(right kafkaRight) {
	s.t.Helper()
	_, err := s.admin.DeleteACL(right.filter(), false)
	require.NoError(s.t, err)
	wait.Until(s.t, func() bool { return !s.has(right) }, "the right is gone")
}

func (s *securedKafka) has(right kafkaRight) bool {
	s.t.Helper()
	found, err := s.admin.ListAcls(right.filter())
	require.NoError(s.t, err)
	return len(found) > 0
}

func (s *securedKafka) config() kafkaretry.Config {
	return kafkaretry.Config{
		Brokers: s.brokers, Sarama: s.client("billing"), Group: "billing",
		Policy: retry.Policy{Schedule: backoff.Schedule{100 * time.Millisecond}},
	}
}

func (s *securedKafka) connect() *app {
	return connect(s.t, func(logger watermill.LoggerAdapter) (retry.Connection, error) {
		return kafkaretry.Connect(s.config(), logger)
	})
}

// billed runs the app of the user billing until a message has come back and another one is dead, or until there is an
// error of Run, of a publish, or in the log. It returns the first.
func (s *securedKafka) billed() string {
	s.t.Helper()
	seen, id := newLedger(), rand.Text() // an earlier run may have left messages
	app := s.connect()
	defer app.stop()
	app.handle("bill", orders, func(msg *message.Message) error {
		if err := seen.failing(1)(msg); err != nil && msg.UUID == "dead "+id {
			return backoff.Permanent(err)
		} else if err != nil {
			return err
		}
		return nil
	})
	var err error
	if app.ended, err = process.Serve(noContext, app.router); err != nil {
		return err.Error()
	}
	for _, id := range []string{id, "dead " + id} {
		if err := app.Publisher().Publish(orders, message.NewMessage(id, nil)); err != nil {
			return err.Error()
		}
	}
	logged := func() []watermill.CapturedMessage { return app.logged(watermill.ErrorLogLevel, "") }
	fault := func(line watermill.CapturedMessage) bool { // a dead letter is a line, too
		return !strings.Contains(line.Msg, "dead-lettered")
	}
	wait.Until(s.t, func() bool {
		return slices.ContainsFunc(logged(), fault) || len(seen.of(id)) > 1 && len(seen.of("dead "+id)) > 0
	}, "the messages are handled, or it is said why not")
	app.stop()
	for _, line := range logged() {
		if fault(line) {
			return line.Msg
		}
	}
	return ""
}

// TestKafkaRightsOfThePage: with them, and no others, a user retries and dead-letters over TLS and SASL/SCRAM. Without
// one of them, Run or a publish fails, or the log says it.
func TestKafkaRightsOfThePage(t *testing.T) {
	t.Parallel()
	s := startSecuredKafka(t)
	require.NoError(t, s.admin.CreateTopic(orders, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false))
	all := kafkaRights(t)
	created := func(right kafkaRight) bool { return right.Operation == sarama.AclOperationCreate }
	first := slices.IndexFunc(all, created)
	require.GreaterOrEqual(t, first, 0)
	s.grant(slices.DeleteFunc(slices.Clone(all), created)...)
	assert.Contains(t, s.billed(), "give the client the permission, or make it beforehand", "no topic may be made")
	s.grant(all[first])
	require.Empty(t, s.billed())
	store, err := kafkaretry.Letters(s.config(), nil)
	require.NoError(t, err)
	assert.NotEmpty(t, browse(t, store, "retry.dead.billing."+orders))
	require.NoError(t, store.Close())
	s.revoke(all[first])
	require.Empty(t, s.billed(), "the topics are there")
	for _, right := range all {
		if !created(right) {
			s.revoke(right)
			said := s.billed()
			s.grant(right)
			t.Logf("without %v on %s: %s", right.Operation, right.ResourceName, said)
			assert.NotEmpty(t, said)
		}
	}
}

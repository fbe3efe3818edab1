//go:build unix

package servers

import (
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/IBM/sarama"

	"github.com/tieredretry/watermill-retry/tools/server"
)

// The folder kafka has the checksums of each version that is tested.
const (
	kafkaVariable = "KAFKA_VERSION" // an environment variable
	kafkaNewest   = "4.4.0"         // the default
)

//go:embed kafka
var kafkaFiles embed.FS

// Kafka starts a node of Apache Kafka, which is broker and controller. URL is host:port.
func Kafka(ctx context.Context) (*Server, error) {
	return FullKafka(ctx, 0)
}

// FullKafka starts a node that can write no file beyond so many MiB, until it is restarted. Kafka takes that as a full
// disk. 0: it has room.
func FullKafka(ctx context.Context, room int) (*Server, error) {
	all, err := startKafka(ctx, 1, room, sarama.NewConfig())
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// KafkaCluster starts the nodes of a cluster. The first is the controller, too: it must run while the others do. With
// three nodes a topic has three replicas by default, of which two must be in sync. The settings are lines for each node
// that replace others. The client is one that connects.
func KafkaCluster(ctx context.Context, nodes int, client *sarama.Config, settings ...string) ([]*Server, error) {
	return startKafka(ctx, nodes, 0, client, settings...)
}

func startKafka(
	ctx context.Context, nodes, room int, client *sarama.Config, settings ...string,
) (all []*Server, err error) {
	k, err := findKafka(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			for _, node := range all {
				node.Stop()
			}
		}
	}()
	controller := ""
	for id := 1; id <= nodes; id++ {
		node, err := server.Start(ctx, server.Plan{
			Name: "Kafka", Ending: syscall.SIGKILL,
			Command: func(folder string, port int) (string, []string, error) {
				address, roles := net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), "broker"
				lines := []string{"listeners=PLAINTEXT://" + address}
				if id == 1 {
					free, err := server.FreePorts(1)
					if err != nil {
						return "", nil, err
					}
					controller = net.JoinHostPort("127.0.0.1", strconv.Itoa(free[0]))
					lines[0] += ",CONTROLLER://" + controller
					roles = "broker,controller"
				}
				lines = append(lines, "process.roles="+roles, "node.id="+strconv.Itoa(id),
					"controller.quorum.voters=1@"+controller, "log.dirs="+filepath.Join(folder, "data"))
				lines = append(lines, kafkaSettings(nodes)...)
				command := k.program("kafka.Kafka", filepath.Join(folder, "server.properties"))
				if room > 0 { // ulimit counts in 512 bytes
					command = append([]string{"sh", "-c", `[ -e limited ] || ulimit -f $(($0 * 2048)); touch limited; exec "$@"`,
						strconv.Itoa(room)}, command...)
				}
				return address, command, k.prepare(folder, id, append(lines, settings...))
			},
			Answers: func(_ context.Context, address string) error { return kafkaAnswers(address, *client) },
		})
		if err != nil {
			return all, err
		}
		all = append(all, node)
	}
	return all, nil
}

// kafkaSettings are those of a node that must start fast on a small machine.
func kafkaSettings(nodes int) []string {
	replicas := min(nodes, 3)
	lines := []string{
		"controller.listener.names=CONTROLLER", "inter.broker.listener.name=PLAINTEXT",
		"num.partitions=4", "offsets.topic.num.partitions=4", "transaction.state.log.num.partitions=4",
		"group.initial.rebalance.delay.ms=0",
		"log.index.size.max.bytes=1048576", "log.cleaner.dedupe.buffer.size=4194304",
	}
	for _, of := range []string{"default", "offsets.topic", "transaction.state.log"} {
		lines = append(lines, fmt.Sprintf("%s.replication.factor=%d", of, replicas))
	}
	for _, of := range []string{"min.insync.replicas", "transaction.state.log.min.isr"} {
		lines = append(lines, fmt.Sprintf("%s=%d", of, max(1, replicas-1)))
	}
	return lines
}

func kafkaAnswers(address string, config sarama.Config) error {
	config.Metadata.Retry.Max = 0
	client, err := sarama.NewClient([]string{address}, &config)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if !slices.ContainsFunc(client.Brokers(), func(b *sarama.Broker) bool { return b.Addr() == address }) {
		return errors.New("the node is not in the cluster yet")
	}
	return nil
}

// kafka is an installed version: a folder with the jars, and what a new node begins with.
type kafka struct{ java, folder string }

func (k kafka) program(class string, args ...string) []string {
	return append([]string{
		k.java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:MaxJavaStackTraceDepth=1",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
		"-cp", filepath.Join(k.folder, "*"), class,
	}, args...)
}

// kafkaID is the ID of every private cluster.
var kafkaID = base64.RawURLEncoding.EncodeToString(make([]byte, 15)) + "AQ"

// formatted is the folder with the data that the first node of a cluster begins with.
const formatted = "formatted"

// prepare writes the configuration and the first data of a node. kafka-storage.sh would take seconds for each.
func (k kafka) prepare(folder string, id int, lines []string) error {
	data := filepath.Join(folder, "data")
	if id == 1 {
		if err := os.CopyFS(data, os.DirFS(filepath.Join(k.folder, formatted))); err != nil {
			return err
		}
	}
	meta := fmt.Appendf(nil, "version=1\ncluster.id=%s\nnode.id=%d\n", kafkaID, id)
	return errors.Join(os.MkdirAll(data, 0o700),
		os.WriteFile(filepath.Join(data, "meta.properties"), meta, 0o600),
		os.WriteFile(filepath.Join(folder, "server.properties"), []byte(strings.Join(lines, "\n")), 0o600))
}

// findKafka returns the version that is to be tested. Where it is not in the folder .broker of the repository, Maven
// brings it.
func findKafka(ctx context.Context) (k kafka, err error) {
	if k.java, err = server.Program(ctx, "java", "default-jre-headless", nil); err != nil {
		return k, err
	}
	version := cmp.Or(os.Getenv(kafkaVariable), kafkaNewest)
	sums, err := kafkaFiles.ReadFile("kafka/" + version + ".sha256")
	if err != nil {
		return k, fmt.Errorf("%s is %q: its jars are not pinned: %w", kafkaVariable, version, err)
	}
	broker, err := brokerFolder()
	if err != nil {
		return k, err
	}
	k.folder = filepath.Join(broker, "kafka-"+version)
	if _, err := os.Stat(filepath.Join(k.folder, formatted)); err == nil {
		return k, nil
	}
	maven, err := server.Program(ctx, "mvn", "maven", nil)
	if err != nil {
		return k, err
	}
	_, _ = fmt.Fprintf(os.Stderr, "Maven brings Kafka %s, once\n", version)
	return k, k.install(ctx, broker, maven, version, string(sums))
}

// brokerFolder is the folder .broker of the repository, in which this process runs.
func brokerFolder() (string, error) {
	folder, err := os.Getwd()
	for ; err == nil; folder = filepath.Dir(folder) {
		if _, err := os.Stat(filepath.Join(folder, "backends", "conformance")); err == nil {
			return filepath.Join(folder, ".broker"), os.MkdirAll(filepath.Join(folder, ".broker"), 0o755)
		}
		if folder == filepath.Dir(folder) {
			err = errors.New("Kafka is started within the repository only")
		}
	}
	return "", err
}

// install makes the folder of a version. Another process may make it at the same time: the first one counts.
func (k kafka) install(ctx context.Context, broker, maven, version, sums string) error {
	folder, err := os.MkdirTemp(broker, "kafka-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	pom, err := kafkaFiles.ReadFile("kafka/pom.xml")
	file := filepath.Join(folder, "pom.xml")
	if err := errors.Join(err, os.WriteFile(file, pom, 0o600)); err != nil {
		return err
	}
	if err := output(ctx, maven, "-B", "-q", "-f", file, "-Dkafka.version="+version, "-DincludeScope=runtime",
		"-DoutputDirectory="+folder, "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"); err != nil {
		return err
	}
	if err := checkSums(folder, sums); err != nil {
		return err
	}
	// kafka-storage.sh writes what a new node begins with.
	properties := filepath.Join(folder, "server.properties")
	lines := fmt.Appendf(nil, "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:1\n"+
		"listeners=PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:1\ncontroller.listener.names=CONTROLLER\nlog.dirs=%s\n",
		filepath.Join(folder, formatted))
	if err := os.WriteFile(properties, lines, 0o600); err != nil {
		return err
	}
	format := kafka{k.java, folder}.program("kafka.tools.StorageTool", "format", "-t", kafkaID, "-c", properties)
	if err := output(ctx, format...); err != nil {
		return err
	}
	if err := os.Rename(folder, k.folder); err != nil {
		_, err = os.Stat(filepath.Join(k.folder, formatted))
		return err
	}
	return nil
}

func output(ctx context.Context, command ...string) error {
	if words, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(command[0]), err, strings.TrimSpace(string(words)))
	}
	return nil
}

// checkSums compares the jars in a folder with the lines of a file of sha256sum.
func checkSums(folder, sums string) error {
	jars, err := filepath.Glob(filepath.Join(folder, "*.jar"))
	if err != nil {
		return err
	}
	var found []string
	for _, jar := range jars {
		content, err := os.ReadFile(jar)
		if err != nil {
			return err
		}
		found = append(found, fmt.Sprintf("%x  %s", sha256.Sum256(content), filepath.Base(jar)))
	}
	want := strings.Split(strings.TrimSpace(sums), "\n")
	isIn := func(lines []string) func(string) bool {
		return func(line string) bool { return slices.Contains(lines, line) }
	}
	if other := slices.DeleteFunc(slices.Clone(found), isIn(want)); len(other) > 0 {
		return fmt.Errorf("Maven has brought other jars than those of the pinned checksums: %q", other)
	}
	if missing := slices.DeleteFunc(want, isIn(found)); len(missing) > 0 {
		return fmt.Errorf("Maven has not brought %q", missing)
	}
	return nil
}

// Package kafkaretry retries the messages of Watermill handlers on Apache Kafka: a message that failed waits on a topic
// of its delay. It uses the publisher and subscriber of watermill-kafka v3.
//
//	retries, err := kafkaretry.Connect(kafkaretry.Config{
//		Brokers: []string{"localhost:9092"},
//		Group:   "billing",
//		Policy:  retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)},
//	}, logger)
//	defer retries.Close() // after router.Run has returned
//	retries.AddConsumerHandler(router, "billing", "orders", bill)
//
// It is for Kafka 4.x, and tested on 4.0 and 4.4. It has the classic protocol of consumer groups only, not KIP-848.
// Kafka has no redelivery limit: a handler may take any time. Due times are by the clocks of the app's hosts.
//
// # Topics
//
// A tier is a topic, "<Prefix>.<delay>". The first 256 messages of each of its partitions wait in the memory of a
// process, unacknowledged, until they are due. Then each is published to the return topic,
// "<Prefix>.return.<Group>.<topic>". Each scheduled delay costs two publishes. Dead letters go to
// "<Prefix>.dead.<Group>.<topic>". Names that would be longer than 200 bytes, or have characters that Kafka refuses,
// end with a hash. Kafka refuses to make two topics whose names differ only in dots and underscores: the second one is
// an error of the router's Run.
//
// A subscription makes the topics that are missing, with the cluster's default replication factor:
//
//	topic          partitions                     messages stay
//	of the app     num.partitions of the cluster  log.retention.ms of the cluster
//	tier           1                              the longest delay of the Policy and 7 days
//	return topic   as the app's topic, else 1     the same
//	dead letters   1                              without limit
//
// That needs permission to create topics. Otherwise make them beforehand, also "<Prefix>.dead.unknown", for messages on
// a tier that are not of this library.
//
// No subscription makes a topic that handlers only publish to. Where auto.create.topics.enable of the cluster is false,
// make it beforehand: a publish to a topic that does not exist is an error that names it, and the message fails. Once
// the topic exists, publishes succeed. Until then one waits for up to 6 seconds, in which sarama tries.
//
// A topic that is read and is deleted is a fault in the Health of the connection. Stop the app before one is deleted
// and made again: a group goes on at its offsets, and does not read what is before them in the new topic.
//
// A tier or return topic whose retention.ms is not longer than the longest delay is an error of the router's Run. So is
// one that is compacted, because copies have no key, and a topic of the retries whose max.message.bytes is smaller than
// that of the app's topic, for a tier than that of any topic of the process. Where the cluster refuses to show the
// settings, that is a warning in the log. A topic of the retries that is deleted while processes run is made again.
// What was there is lost.
//
// Five seconds after messages of tiers and return topics are settled, they are deleted, in whole segments of Kafka's
// files. So let no other consumer group depend on topics that begin with the Prefix. Without the permission to delete
// records they stay for the retention, and a warning is in the log.
//
// # Messages in flight
//
// The services of a prefix share its tiers, so each forwards retries of the others: with ACLs, give each service a
// Prefix, or Write on all return topics of the prefix. The retries for a topic that cannot be written circle on a tier
// of at most a minute, or the shortest, until it can: see package relay. When that begins, the others on their tier can
// be five seconds late.
//
// Kafka delivers one message of each partition at a time. Concurrency, 16 by default, bounds the calls of a handler
// over its topic and its return topic together. A topic with fewer partitions than Concurrency is a line in the log. A
// tier may have several partitions, which several processes can share.
//
// # Consumer groups
//
// Each topic has a consumer group of its own, "<Group>.<topic>": a process that joins or leaves stops only the handlers
// of its topics. The name ends with a hash where the Group has a dot, or it would be longer than 150 bytes. The groups
// of tiers are "retry-relay.<topic>". Operators see these names. An app that has used watermill-kafka with the consumer
// group "billing" begins with the oldest message of each topic, because the group "billing.orders" is new. Copy the
// offsets of each topic before the first start, while no process runs:
//
//	kafka-consumer-groups.sh --bootstrap-server kafka-1:9092 --group billing --topic orders \
//	  --reset-offsets --to-current --export --dry-run > offsets.csv
//	kafka-consumer-groups.sh --bootstrap-server kafka-1:9092 --group billing.orders \
//	  --reset-offsets --from-file offsets.csv --execute
//
// At a rebalance, calls that run may end within 25 seconds, and their acknowledgements count. What waits on a tier goes
// to another process at once, after what is just being published. A few messages that are due within the same
// milliseconds can come twice then, and at a shutdown. When the context of a subscription ends, calls may end too;
// Close of the connection gives up the others, and leaves the groups. After a SIGKILL the partitions of the process
// have no reader for 6 seconds, the session timeout. A pause of a process that is longer than that, for example of its
// virtual machine, causes duplicates.
//
// # Requested delays
//
// A backoff.RetryAfter that is no delay of the schedule waits on the shortest tier that is not below it, else on the
// longest one in several rounds: an hour on tiers of 1 s to 125 s costs 30 publishes, in place of 2. Where it leaves
// its tier before others that are ahead of it, it comes again after a stop or a rebalance: up to 255 of each
// partition. Behind 256 messages of its partition that wait longer, it is late: it waits for the first of them.
// ExtraTiers with the delays that are requested most avoid all of this.
//
// # Rights
//
// With ACLs the user "billing" needs these, with the Group "billing" and the default Prefix. The topic must exist. TLS
// and SASL are those of Config.Sarama.
//
//	# each topic that a handler reads; Write where the app publishes to it
//	kafka-acls.sh --bootstrap-server kafka-1:9092 --add --allow-principal User:billing \
//	  --operation Read --operation Write --operation DescribeConfigs --topic orders
//	# tiers, return topics and dead letters. Create: not where they were made beforehand
//	kafka-acls.sh --bootstrap-server kafka-1:9092 --add --allow-principal User:billing \
//	  --operation Create --operation Read --operation Write --operation Delete --operation DescribeConfigs \
//	  --topic retry. --resource-pattern-type prefixed
//	kafka-acls.sh --bootstrap-server kafka-1:9092 --add --allow-principal User:billing \
//	  --operation Read --group billing. --resource-pattern-type prefixed
//	kafka-acls.sh --bootstrap-server kafka-1:9092 --add --allow-principal User:billing \
//	  --operation Read --group retry-relay. --resource-pattern-type prefixed
//
// Without Delete settled messages stay for the retention of their topic, and without DescribeConfigs nothing looks at
// that. Without another one Run or Publish fails, or the log has an error.
//
// # Guarantees
//
// A publish returns nil after all in-sync replicas have the message, and a message is acknowledged after that. How many
// replicas are in sync at least is min.insync.replicas: with Kafka's default of 1, the death of a leader can lose
// messages. Set it to 2, with a replication factor of 3. Kafka does not wait for disks: a power cut of all replicas at
// the same time can lose what they have not written.
//
// What another producer has aborted in a transaction is not delivered, and what is behind an open transaction waits
// for its end. A copy needs room for its failure record, about a kilobyte. A topic of the retries is made with the
// max.message.bytes of the app's topic and 64 KiB more, and Producer.MaxMessageBytes of the client does not limit
// copies. What does not fit on a tier is a dead letter at once. sarama reads new partitions of a topic after
// Metadata.RefreshFrequency, 10 minutes by default. The cooperative strategy of sarama 1.61 is for the topics of
// handlers, tiers keep the range strategy.
//
// Delivery is at least once. Acknowledgements are sent every 200 ms: a SIGKILL causes duplicates of that time, and of
// up to 256 messages of each partition of a tier while its first one cannot be forwarded. What was fetched and handled
// while a broker does not answer is not acknowledged, and comes again.
//
// The due time is written by the host of the failure and compared with the clock of the host that waits: see package
// relay. A copy has the payload, UUID and metadata of its message. It has not its key, timestamp and partition, which
// watermill-kafka has in the context.
//
// A broker whose disk is full ends itself. Where no other in-sync replica is left, copies are held, as in any outage:
// make room and start it.
//
// Where all processes are stopped for longer than offsets.retention.minutes of the cluster, 7 days by default, their
// groups begin with the oldest messages, and retries that were handled come again.
package kafkaretry

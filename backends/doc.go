// Package backends connects apps with retries to other Pub/Subs than RabbitMQ: one file for each, which is all that differs
// between them. The conformance suite and the example use what is here; take from it what your app needs.
//
// Which backend delays messages itself, and whether that is used:
//
//	backend     its own delay                          used   why
//	RabbitMQ    queues with a TTL                      yes    package config, no relay
//	PostgreSQL  watermill-sql's delayed tables         yes    kept by the database; with a condition of our own (queue)
//	NATS        NakWithDelay                           no     no failure record, no dead letter; every waiting message fills MaxAckPending
//	            scheduled messages, since 2.12         no     up to 250 ms late, a subject for every message, older servers have none
//	Redis       none                                   relay
//	Kafka       none                                   relay
//	gochannel   none                                   relay
package backends

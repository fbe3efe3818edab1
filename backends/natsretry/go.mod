module github.com/tieredretry/watermill-retry/backends/natsretry

go 1.25.0

require (
	github.com/ThreeDotsLabs/watermill v1.5.3
	github.com/nats-io/nats.go v1.51.0
	github.com/nats-io/nuid v1.0.1
	github.com/stretchr/testify v1.12.1
	github.com/tieredretry/watermill-retry v0.0.0
)

require (
	github.com/cenkalti/backoff/v5 v5.0.3 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/klauspost/compress v1.18.5 // indirect
	github.com/lithammer/shortuuid/v3 v3.0.7 // indirect
	github.com/nats-io/nkeys v0.4.15 // indirect
	github.com/oklog/ulid v1.3.1 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/sony/gobreaker v1.0.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/crypto v0.49.0 // indirect
	golang.org/x/sys v0.44.0 // indirect
)

replace github.com/tieredretry/watermill-retry => ../../

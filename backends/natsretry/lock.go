package natsretry

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/tieredretry/watermill-retry/internal/inflight"
	"github.com/tieredretry/watermill-retry/letters"
)

// lock is a key of a bucket, whose keys end after the lease. Its value names the owner.
type lock struct {
	bucket   jetstream.KeyValue
	key      string
	owner    []byte
	revision uint64
}

// Lock implements relayletters.Reader. It makes the bucket where it is missing.
func (r *reader) Lock(ctx context.Context, topic string) (context.Context, func(), error) {
	bucket, err := r.js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: r.stream + "-locks", TTL: r.Lease, Replicas: r.replicas(),
	})
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make the bucket of the locks: %w", err)
	}
	l := &lock{bucket: bucket, key: hex.EncodeToString([]byte(topic)), owner: []byte(nuid.Next())}
	if err := l.take(ctx); errors.Is(err, jetstream.ErrKeyExists) {
		return nil, nil, fmt.Errorf("topic %q: %w: wait until that redrive or discard has ended; the lock of one that was "+
			"killed ends %v later", topic, letters.ErrBusy, r.Lease)
	} else if err != nil {
		return nil, nil, err
	}
	held, release := inflight.Hold(ctx, r.Lease, l)
	return held, release, nil
}

func (l *lock) take(ctx context.Context) (err error) {
	l.revision, err = l.bucket.Create(ctx, l.key, l.owner)
	return err
}

// Renew implements inflight.Lock: it writes the key again. A renewal whose answer was lost may have changed its
// revision: the lock is still held where the key has this owner.
func (l *lock) Renew(ctx context.Context) error {
	err := l.write(ctx)
	if !errors.Is(err, jetstream.ErrKeyExists) {
		return err
	}
	entry, err := l.bucket.Get(ctx, l.key)
	if err != nil {
		return err
	}
	if !bytes.Equal(entry.Value(), l.owner) {
		return inflight.ErrTaken
	}
	l.revision = entry.Revision()
	return l.write(ctx)
}

func (l *lock) write(ctx context.Context) error {
	revision, err := l.bucket.Update(ctx, l.key, l.owner, l.revision)
	if err == nil {
		l.revision = revision
	}
	return err
}

// Release implements inflight.Lock: it deletes the key, unless another call has it.
func (l *lock) Release(ctx context.Context) error {
	err := l.bucket.Delete(ctx, l.key, jetstream.LastRevision(l.revision))
	if !errors.Is(err, jetstream.ErrKeyExists) {
		return err
	}
	entry, err := l.bucket.Get(ctx, l.key)
	if err != nil || !bytes.Equal(entry.Value(), l.owner) {
		return err
	}
	return l.bucket.Delete(ctx, l.key, jetstream.LastRevision(entry.Revision()))
}

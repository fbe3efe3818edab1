//go:build unix

package child

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	Main(map[string]Role{"ends": Of(ends), "hangs": Of(hangs)})
	os.Exit(m.Run())
}

func ends(ctx context.Context, _ struct{}) error {
	Write(Ready)
	<-ctx.Done()
	return errors.New("told to end")
}

// hangs ignores that it is told to end.
func hangs(context.Context, struct{}) error {
	Write(Ready)
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

func TestStopEndsAProcessThatHangs(t *testing.T) {
	for role, row := range map[string]struct {
		patience time.Duration
		want     string
	}{
		"ends":  {time.Minute, "exit status 1"},
		"hangs": {50 * time.Millisecond, "it has not ended 50ms after SIGTERM, its goroutines are on stderr: exit status 2"},
	} {
		t.Run(role, func(t *testing.T) {
			printed, write, err := os.Pipe()
			require.NoError(t, err)
			var goroutines bytes.Buffer
			read := make(chan struct{})
			go func() { defer close(read); _, _ = goroutines.ReadFrom(printed) }()
			stderr := os.Stderr
			os.Stderr = write
			c, err := StartReady(role, struct{}{}, func(string) {})
			os.Stderr = stderr
			require.NoError(t, err)
			assert.EqualError(t, c.stop(row.patience), row.want)
			require.NoError(t, write.Close())
			<-read
			if role == "hangs" {
				assert.Contains(t, goroutines.String(), "child.hangs(")
			}
		})
	}
}

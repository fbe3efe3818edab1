package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestVersions(t *testing.T) {
	for version, want := range map[string]bool{
		"v0.1.0": true, "v1.10.0-rc.1": true, "0.1.0": false, "v0.1": false, "v01.0.0": false, "v2.0.0": false, "v0.1.0-": false,
	} {
		if got := versionForm.MatchString(version); got != want {
			t.Errorf("%s: got %t, want %t", version, got, want)
		}
	}
}

func TestWhatIsOnlyUntilTheFirstRelease(t *testing.T) {
	const text = "`go get x`<!-- until the first release --> (not\nyet)<!-- end -->, and:\n\n<!-- until the first release -->\nOr so.\n" +
		"<!-- end -->\n\n```sh\ngo mod edit -replace x=../x   # until the first release\ngo mod tidy\n```\n"
	const want = "`go get x`, and:\n\n```sh\ngo mod tidy\n```\n"
	if got := withoutUntil(text); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal("docs has no pages", err)
	}
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		if strings.Contains(withoutUntil(string(text)), "first release") {
			t.Errorf("%s has the first release outside of what is only until then", page)
		}
	}
}

// TestArchives: an archive has the names, modes and bytes of its files, and is the same each time.
func TestArchives(t *testing.T) {
	file := filepath.Join(t.TempDir(), "wmretry")
	require.NoError(t, os.WriteFile(file, []byte("binary"), 0o600))
	files, changed := []entry{{"wmretry_1/wmretry", 0o755, file}}, time.Unix(1700000000, 0)
	written := func(write func(io.Writer, []entry, time.Time) error) []byte {
		t.Helper()
		var first, second bytes.Buffer
		for _, to := range []*bytes.Buffer{&first, &second} {
			require.NoError(t, write(to, files, changed))
		}
		if !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Error("the second archive differs from the first")
		}
		return first.Bytes()
	}
	check := func(name string, mode os.FileMode, content io.Reader) {
		t.Helper()
		text, err := io.ReadAll(content)
		if err != nil || name != "wmretry_1/wmretry" || mode.Perm() != 0o755 || string(text) != "binary" {
			t.Errorf("got %s %v %q %v", name, mode, text, err)
		}
	}
	uncompressed, err := gzip.NewReader(bytes.NewReader(written(writeTar)))
	require.NoError(t, err)
	archive := tar.NewReader(uncompressed)
	header, err := archive.Next()
	require.NoError(t, err)
	check(header.Name, header.FileInfo().Mode(), archive)
	zipped := written(writeZip)
	entries, err := zip.NewReader(bytes.NewReader(zipped), int64(len(zipped)))
	require.NoError(t, err)
	content, err := entries.File[0].Open()
	require.NoError(t, err)
	check(entries.File[0].Name, entries.File[0].Mode(), content)
}

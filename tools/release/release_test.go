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
)

func TestVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"v0.1.0": true, "v1.10.0-rc.1": true, "0.1.0": false, "v0.1": false, "v01.0.0": false, "v2.0.0": false, "v0.1.0-": false,
	} {
		if got := versionForm.MatchString(version); got != want {
			t.Errorf("%s: got %t, want %t", version, got, want)
		}
	}
}

func TestWhatIsOnlyUntilTheFirstRelease(t *testing.T) {
	t.Parallel()
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
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(withoutUntil(string(text)), "first release") {
			t.Errorf("%s has the first release outside of what is only until then", page)
		}
	}
}

// TestArchives: an archive has the names, modes and bytes of its files, and is the same each time.
func TestArchives(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "wmretry")
	if err := os.WriteFile(file, []byte("binary"), 0o600); err != nil {
		t.Fatal(err)
	}
	files, changed := []entry{{"wmretry_1/wmretry", 0o755, file}}, time.Unix(1700000000, 0)
	written := func(write func(io.Writer, []entry, time.Time) error) []byte {
		t.Helper()
		var first, second bytes.Buffer
		for _, to := range []*bytes.Buffer{&first, &second} {
			if err := write(to, files, changed); err != nil {
				t.Fatal(err)
			}
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
	if err != nil {
		t.Fatal(err)
	}
	archive := tar.NewReader(uncompressed)
	header, err := archive.Next()
	if err != nil {
		t.Fatal(err)
	}
	check(header.Name, header.FileInfo().Mode(), archive)
	zipped := written(writeZip)
	entries, err := zip.NewReader(bytes.NewReader(zipped), int64(len(zipped)))
	if err != nil {
		t.Fatal(err)
	}
	content, err := entries.File[0].Open()
	if err != nil {
		t.Fatal(err)
	}
	check(entries.File[0].Name, entries.File[0].Mode(), content)
}

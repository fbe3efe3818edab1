package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
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
	folder, changed := t.TempDir(), time.Unix(1700000000, 0)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "wmretry"), []byte("binary"), 0o600))
	packed := func(pack func(fs.FS) ([]byte, error)) []byte {
		t.Helper()
		var packs [2][]byte
		for i := range packs {
			files := fstest.MapFS{}
			require.NoError(t, add(files, "wmretry_1", folder, 0o755, changed))
			var err error
			packs[i], err = pack(files)
			require.NoError(t, err)
		}
		require.Equal(t, packs[0], packs[1])
		return packs[0]
	}
	check := func(name string, of fs.FileInfo, content io.Reader) {
		t.Helper()
		text, err := io.ReadAll(content)
		require.NoError(t, err)
		require.Equal(t, "wmretry_1/wmretry -rwxr-xr-x binary", fmt.Sprint(name, " ", of.Mode(), " ", string(text)))
		require.True(t, of.ModTime().Equal(changed))
	}
	uncompressed, err := gzip.NewReader(bytes.NewReader(packed(packTar)))
	require.NoError(t, err)
	archive := tar.NewReader(uncompressed)
	header, err := archive.Next()
	for err == nil && header.Typeflag == tar.TypeDir {
		header, err = archive.Next()
	}
	require.NoError(t, err)
	check(header.Name, header.FileInfo(), archive)
	zipped := packed(packZip)
	entries, err := zip.NewReader(bytes.NewReader(zipped), int64(len(zipped)))
	require.NoError(t, err)
	last := entries.File[len(entries.File)-1]
	content, err := last.Open()
	require.NoError(t, err)
	check(last.Name, last.FileInfo(), content)
}

package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing/fstest"
	"time"
)

// The folder of the command.
const wmretry = "cmd/wmretry"

var platforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64"}

// archives builds the command for each platform, and writes archives with its manual and completions, and checksums.
// Two runs on one commit write the same archives.
func (r *release) archives() error {
	text, err := git(r.clone, "log", "-1", "--format=%ct")
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return err
	}
	pages := filepath.Join(r.temp, "pages")
	err = r.goIn(wmretry, []string{"SOURCE_DATE_EPOCH=" + text}, "run", "./internal/pages", pages)
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
		text, fault := os.ReadFile(filepath.Join(r.clone, name))
		err = errors.Join(err, fault, os.WriteFile(filepath.Join(pages, name), text, 0o644))
	}
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, platform := range r.platforms {
		name, content, err := r.archive(platform, pages, time.Unix(seconds, 0).UTC())
		if err == nil {
			err = os.WriteFile(filepath.Join(r.dist, name), content, 0o644)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), name)
	}
	return os.WriteFile(filepath.Join(r.dist, "checksums.txt"), sums.Bytes(), 0o644)
}

func (r *release) archive(platform, pages string, committed time.Time) (name string, content []byte, err error) {
	system, processor, _ := strings.Cut(platform, "/")
	binary := filepath.Join(r.dist, filepath.FromSlash(platform), "wmretry")
	if system == "windows" {
		binary += ".exe"
	}
	err = r.goIn(wmretry, []string{"GOOS=" + system, "GOARCH=" + processor, "CGO_ENABLED=0"},
		"build", "-trimpath", "-buildvcs=true", "-ldflags=-s -w", "-o", binary, ".")
	if err != nil {
		return "", nil, err
	}
	if info, err := buildinfo.ReadFile(binary); err != nil || info.Main.Version != r.version {
		return "", nil, errors.Join(err, fmt.Errorf("the command is not of version %s: %v", r.version, info))
	}
	name = fmt.Sprintf("wmretry_%s_%s_%s", strings.TrimPrefix(r.version, "v"), system, processor)
	files := fstest.MapFS{}
	err = errors.Join(add(files, name, filepath.Dir(binary), 0o755, committed), add(files, name, pages, 0o644, committed))
	if err != nil {
		return "", nil, err
	}
	pack, ending := packTar, ".tar.gz"
	if system == "windows" {
		pack, ending = packZip, ".zip"
	}
	content, err = pack(files)
	return name + ending, content, err
}

// add adds the files of a folder below a name, with a mode and a time that are not those of this machine.
func add(files fstest.MapFS, name, folder string, mode fs.FileMode, changed time.Time) error {
	return fs.WalkDir(os.DirFS(folder), ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		inside := path.Join(name, file)
		if entry.IsDir() {
			files[inside] = &fstest.MapFile{Mode: fs.ModeDir | 0o755, ModTime: changed}
			return nil
		}
		content, err := os.ReadFile(filepath.Join(folder, file))
		files[inside] = &fstest.MapFile{Data: content, Mode: mode, ModTime: changed}
		return err
	})
}

func packTar(files fs.FS) ([]byte, error) {
	var packed bytes.Buffer
	compressed := gzip.NewWriter(&packed)
	archive := tar.NewWriter(compressed)
	err := errors.Join(archive.AddFS(files), archive.Close(), compressed.Close())
	return packed.Bytes(), err
}

func packZip(files fs.FS) ([]byte, error) {
	var packed bytes.Buffer
	archive := zip.NewWriter(&packed)
	err := errors.Join(archive.AddFS(files), archive.Close())
	return packed.Bytes(), err
}

// goIn runs the go command in a folder of the clone.
func (r *release) goIn(dir string, environment []string, args ...string) error {
	return command(filepath.Join(r.clone, filepath.FromSlash(dir)), append(slices.Clone(r.own), environment...), "go",
		args...)
}

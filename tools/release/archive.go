package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The folder of the command.
const wmretry = "cmd/wmretry"

var platforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64"}

// archives builds the command for each platform, and writes archives with its manual and completions, lists of what it
// is built from, and checksums. Two runs on one commit write the same archives.
func (r *release) archives() error {
	text, err := git(r.clone, "log", "-1", "--format=%ct")
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return err
	}
	committed := time.Unix(seconds, 0).UTC()
	pages, environment := filepath.Join(r.temp, "pages"), append(slices.Clone(r.own), "SOURCE_DATE_EPOCH="+text)
	err = command(filepath.Join(r.clone, filepath.FromSlash(wmretry)), environment, "go", "run", "./internal/pages", pages)
	if err != nil {
		return err
	}
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
		text, err := os.ReadFile(filepath.Join(r.clone, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(pages, name), text, 0o644); err != nil {
			return err
		}
	}
	for _, platform := range r.platforms {
		if err := r.archive(platform, pages, committed); err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
	}
	return r.checksums()
}

func (r *release) archive(platform, pages string, committed time.Time) error {
	system, processor, _ := strings.Cut(platform, "/")
	binary := filepath.Join(r.dist, filepath.FromSlash(platform), "wmretry")
	if system == "windows" {
		binary += ".exe"
	}
	environment := append(slices.Clone(r.own), "GOOS="+system, "GOARCH="+processor, "CGO_ENABLED=0")
	err := command(filepath.Join(r.clone, filepath.FromSlash(wmretry)), environment,
		"go", "build", "-trimpath", "-buildvcs=true", "-ldflags=-s -w", "-o", binary, ".")
	if err != nil {
		return err
	}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	if info.Main.Version != r.version {
		return fmt.Errorf("the command is of version %s: want %s", info.Main.Version, r.version)
	}
	name := fmt.Sprintf("wmretry_%s_%s_%s", strings.TrimPrefix(r.version, "v"), system, processor)
	if err := r.writeBill(name, info); err != nil {
		return err
	}
	files := []entry{{path.Join(name, filepath.Base(binary)), 0o755, binary}}
	err = filepath.WalkDir(pages, func(file string, found fs.DirEntry, err error) error {
		if err == nil && !found.IsDir() {
			inside, _ := filepath.Rel(pages, file)
			files = append(files, entry{path.Join(name, filepath.ToSlash(inside)), 0o644, file})
		}
		return err
	})
	if err != nil {
		return err
	}
	if system == "windows" {
		return write(filepath.Join(r.dist, name+".zip"), func(w io.Writer) error { return writeZip(w, files, committed) })
	}
	return write(filepath.Join(r.dist, name+".tar.gz"), func(w io.Writer) error { return writeTar(w, files, committed) })
}

// An entry of an archive.
type entry struct {
	name string
	mode fs.FileMode
	file string // its content
}

func write(path string, content func(io.Writer) error) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(content(file), file.Close())
}

func writeTar(w io.Writer, files []entry, changed time.Time) error {
	compressed := gzip.NewWriter(w)
	archive := tar.NewWriter(compressed)
	for _, f := range files {
		content, err := os.ReadFile(f.file)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: f.name, Mode: int64(f.mode), Size: int64(len(content)), ModTime: changed}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(content); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), compressed.Close())
}

func writeZip(w io.Writer, files []entry, changed time.Time) error {
	archive := zip.NewWriter(w)
	for _, f := range files {
		content, err := os.ReadFile(f.file)
		if err != nil {
			return err
		}
		header := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: changed}
		header.SetMode(f.mode)
		to, err := archive.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := to.Write(content); err != nil {
			return err
		}
	}
	return archive.Close()
}

// writeBill writes the modules that a command is built from, as a CycloneDX document.
func (r *release) writeBill(name string, info *buildinfo.BuildInfo) error {
	type component struct {
		Type    string `json:"type"`
		Ref     string `json:"bom-ref"`
		Name    string `json:"name"`
		Version string `json:"version"`
		Package string `json:"purl"`
	}
	of := func(kind, path, version string) component {
		url := "pkg:golang/" + path + "@" + version
		return component{kind, url, path, version, url}
	}
	bill := struct {
		Format   string `json:"bomFormat"`
		Spec     string `json:"specVersion"`
		Version  int    `json:"version"`
		Metadata struct {
			Component component `json:"component"`
		} `json:"metadata"`
		Components []component `json:"components"`
	}{Format: "CycloneDX", Spec: "1.6", Version: 1}
	bill.Metadata.Component = of("application", info.Main.Path, info.Main.Version)
	bill.Components = append(bill.Components, of("library", "std", strings.TrimPrefix(info.GoVersion, "go")))
	for _, dependency := range info.Deps {
		bill.Components = append(bill.Components, of("library", dependency.Path, dependency.Version))
	}
	text, err := json.MarshalIndent(bill, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.dist, name+".cdx.json"), append(text, '\n'), 0o644)
}

// checksums writes the SHA-256 of each file that is published with the release.
func (r *release) checksums() error {
	files, err := filepath.Glob(filepath.Join(r.dist, "wmretry_*"))
	if err != nil {
		return err
	}
	return write(filepath.Join(r.dist, "checksums.txt"), func(w io.Writer) error {
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(w, "%x  %s\n", sha256.Sum256(content), filepath.Base(file)); err != nil {
				return err
			}
		}
		return nil
	})
}

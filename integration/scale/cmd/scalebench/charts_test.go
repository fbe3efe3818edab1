package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSameFiguresMakeTheSameCharts(t *testing.T) {
	t.Parallel()
	r := report{
		lateness: []latenessResult{{"4.3.6", "per-message TTL", []float64{0, 10, 5000}}, {"4.3.6", "ladder", []float64{1, 2, 3}}},
		worker:   []workerResult{{"4.3.6", "by hand", []time.Duration{time.Second, 2 * time.Second}}},
		million:  []millionResult{{broker: "4.3.6", side: "by hand", messages: 2, progress: []point{{0, 1}, {1, 2}}}},
		growth:   []growthResult{{"4.3.6", "grouped", 10, time.Second, 1}, {"4.3.6", "grouped", 100, 2 * time.Second, 1}},
		start:    []startResult{{"4.3.6", "grouped", []time.Duration{time.Second, 2 * time.Second}}},
		cost:     []costResult{{"4.3.6", "by hand", []float64{1, 1, 1}}, {"4.3.6", "library", []float64{1, 1.1, 1.2}}},
	}
	first, second := t.TempDir(), t.TempDir()
	require.NoError(t, r.draw(first))
	require.NoError(t, r.draw(second))
	files, err := filepath.Glob(filepath.Join(first, "*.svg"))
	require.NoError(t, err)
	require.Len(t, files, 6)
	for _, file := range files {
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		have, err := os.ReadFile(filepath.Join(second, filepath.Base(file)))
		require.NoError(t, err)
		require.Equal(t, want, have, file)
	}
}

func TestAQuestionThatWasNotMeasuredHasNoChart(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	require.NoError(t, (&report{}).draw(folder))
	files, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Empty(t, files)
}

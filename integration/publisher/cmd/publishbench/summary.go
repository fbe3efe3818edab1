package main

import (
	"slices"
)

type summary struct {
	least, lower, median, upper, most float64
}

func summarize(values []float64) summary {
	sorted := slices.Sorted(slices.Values(values))
	at := func(part float64) float64 { return sorted[int(part*float64(len(sorted)-1)+0.5)] }
	return summary{least: at(0), lower: at(0.25), median: at(0.5), upper: at(0.75), most: at(1)}
}

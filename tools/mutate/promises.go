package main

// promises are all promises: those of docs/guarantees.md in the order of the page, then those of the other pages.
func promises() []promise {
	var all []promise
	for _, page := range [][]promise{guarantees, connects, inputs, outcomes, letters, operates, others} {
		all = append(all, page...)
	}
	return all
}

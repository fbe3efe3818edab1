// Package each makes lists of lists.
package each

// Of returns what of makes of each element, in their order. It is never nil.
func Of[T, U any](all []T, of func(T) U) []U {
	made := make([]U, len(all))
	for i, one := range all {
		made[i] = of(one)
	}
	return made
}

package binding

// Marks is how many messages are marked.
func Marks() int {
	marks.RLock()
	defer marks.RUnlock()
	return len(marks.of)
}

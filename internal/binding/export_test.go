package binding

// Marks is how many messages are marked.
func Marks() (n int) {
	marks.Range(func(any, any) bool { n++; return true })
	return n
}

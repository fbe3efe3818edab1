package main

import "testing"

// TestVariants: what the handlers with an order by key do holds, and each fault that they avoid breaks the order.
func TestVariants(t *testing.T) {
	t.Parallel()
	for _, v := range variants() {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			c := search(v)
			if c.result() == v.want {
				t.Logf("%s: %d states", c.result(), len(c.seen))
				return
			}
			t.Errorf("%s: it %s, expected: %s", v.about, c.result(), v.want)
			if c.broken != nil {
				t.Log("\n" + c.broken.run)
			}
		})
	}
}

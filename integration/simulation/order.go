package simulation

// inOrder checks that those before a message with its key are finished when it is called.
func (l *ledger) inOrder(m *letter) {
	if l.plan.shape != keepsOrder || m.key == "" {
		return
	}
	for _, before := range l.byKey[m.queue+m.key][:m.number] {
		if !before.finished {
			l.violate(m.id, "%s is called before the end of %s of the same key", m.id, before.id)
		}
	}
}

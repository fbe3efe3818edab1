package main

// A variant is a protocol, the faults that it meets, and what is expected of it.
type variant struct {
	name, about string
	want        string // holds, or breaks and the property

	// What happens to a failed message. It is held, unless:
	tier   bool // a copy goes to a tier
	park   bool // so do its followers
	ledger bool // all owners know what is parked, in the same instant
	nack   bool // it is nacked

	// What happens to a dead letter.
	skip, block bool

	cancel  bool // a shutdown cancels the consumer and finishes what it has
	timeout bool // the consumer timeout of RabbitMQ 4.3 is not avoided
	zombies bool
	fence   bool // the store refuses effects of an owner that is older than the latest
	refuses bool // the queue refuses a copy. Else the dead-letter worker restarts.

	prefetch [owners]int8
	may      budget
	order    []item // of the publisher
	later    int8   // how many of them it publishes while the owners work
}

const holds = "holds"

var (
	twoKeys = []item{0, 3, 1, 4, 2, 5} // a1 b1 a2 b2 a3 b3
	mostOne = []item{0, 3, 1, 2}       // a1 b1 a2 a3
	oneKey  = []item{0, 1, 2}          // a1 a2 a3
)

func variants() []variant {
	all := append(published(), held()...)
	for i := range all {
		v := &all[i]
		if v.prefetch == [owners]int8{} {
			v.prefetch = [owners]int8{4, 4, 4}
		}
		if v.order == nil {
			v.order, v.later = twoKeys, 2
		}
	}
	return all
}

// published are the variants that publish copies of what waits.
func published() []variant {
	return []variant{{
		name: "today", want: "breaks P1",
		about: "a copy goes to the tier, its followers go on",
		tier:  true, may: budget{failures: 1},
	}, {
		name: "park-memory", want: "breaks P1",
		about: "followers go to the tier behind it, the owner's memory knows the waiting keys; a crash",
		tier:  true, park: true, may: budget{failures: 1, faults: 1},
	}, {
		name: "park-ledger", want: "breaks P2",
		about: "the same with an ideal ledger of the waiting keys; a crash",
		tier:  true, park: true, ledger: true, may: budget{failures: 1, faults: 1}, order: oneKey, later: 1,
	}, {
		name: "park-ledger-worker", want: "breaks P2",
		about: "the same; no crash, the dead-letter worker restarts",
		tier:  true, park: true, ledger: true, may: budget{failures: 1, worker: 1}, order: oneKey, later: 1,
	}, {
		name: "park-ledger-refused", want: "breaks P5",
		about: "the same; no crash, the queue refuses one copy, which the worker sends again",
		tier:  true, park: true, ledger: true, refuses: true, may: budget{failures: 1, worker: 1},
		order: oneKey, later: 1,
	}}
}

// held are the variants that keep what waits where it is: unacknowledged, and its followers behind it.
func held() []variant {
	return []variant{{
		name: "hold", want: holds,
		about: "the failed message and its followers stay unacknowledged; crashes",
		may:   budget{failures: 2, faults: 2},
	}, {
		name: "hold-skip", want: holds,
		about: "the same, a dead letter is skipped",
		skip:  true, may: budget{failures: 1, fatal: 1, faults: 2}, order: mostOne, later: 1,
	}, {
		name: "hold-block", want: holds,
		about: "the same, a dead letter blocks its key until an operator retries or skips it",
		block: true, may: budget{failures: 1, fatal: 2, faults: 1, retries: 1, skips: 1}, order: mostOne, later: 1,
	}, {
		name: "hold-block-full", want: holds,
		about: "the same, the blocked key can fill the prefetch",
		block: true, may: budget{fatal: 1, faults: 1, retries: 1}, prefetch: [owners]int8{2, 2, 2},
		order: mostOne, later: 1,
	}, {
		name: "hold-cancel", want: "breaks P1",
		about:  "the same as hold, a shutdown cancels the consumer and finishes what it has",
		cancel: true, may: budget{failures: 1, faults: 1}, prefetch: [owners]int8{2, 2, 2},
	}, {
		name: "hold-timeout", want: "breaks P1",
		about:   "the same as hold, the broker returns what is over the consumer timeout, and no more",
		timeout: true, may: budget{failures: 1, faults: 1}, prefetch: [owners]int8{2, 2, 2},
	}, {
		name: "hold-lower-prefetch", want: "breaks P1",
		about: "the same as hold, later owners have a lower prefetch",
		may:   budget{failures: 1, faults: 2}, prefetch: [owners]int8{4, 2, 2},
	}, {
		name: "hold-nack", want: "breaks P1",
		about: "the same as hold, the failed message alone is nacked instead of held",
		nack:  true, may: budget{failures: 1},
	}, {
		name: "hold-zombie", want: "breaks P3",
		about:   "the same as hold, owners are deposed without their notice",
		zombies: true, may: budget{failures: 1, faults: 2}, order: mostOne, later: 1,
	}, {
		name: "hold-zombie-fence", want: holds,
		about:   "the same, the store refuses effects of older owners",
		zombies: true, fence: true, may: budget{failures: 1, faults: 2}, order: mostOne,
	}, {
		name: "hold-block-fence", want: holds,
		about: "the same, a dead letter blocks its key",
		block: true, zombies: true, fence: true, may: budget{fatal: 1, faults: 1, retries: 1, skips: 1},
		order: mostOne, later: 1,
	}}
}

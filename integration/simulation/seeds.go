package simulation

// kept are seeds that have failed once because of a fault of the library. They run before all others.
var kept = []struct {
	seed  uint64
	found string
}{
	{1, "two handlers of a connection that begin together stand: one waits in a mutex while the other declares"},
	{164, "a channel that is closed twice stands: one Close waits in a mutex while the other waits for the broker"},
	{1487, "a pause in an alarm closes the intake behind what it has written, which is moved twice"},
	{188, "another client replaces a work queue before it is consumed, and its retries are orphans"},
	{14359, "a produced message that cannot be published counts no failure while its key is paused"},
	{45044, "a declaration that ends the connection is tried again for each message that needs it"},
	{45709, "each step of a breaker has two lines in the log"},
	{8977, "a rule that panics has a line for each message, and the line does not name it"},
}

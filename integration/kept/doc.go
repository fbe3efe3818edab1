// Package kept has data that an earlier state of this library has written, on each version of RabbitMQ: the topology,
// messages that wait, dead letters and orphans. Its test shows that the present code declares the same topology,
// reads this data, retries and redrives it. The data is the wire of 0.1: docs/compatibility.md states for how long.
//
// A file, such as 3.10.json, is named after the broker that the data was written on, and is read on every broker. It
// also has what is expected: what the code that wrote it says of each letter, and what its handlers got.
//
// The files are made once, and not again with each change: a difference is a broken promise. Where a change is meant to
// say more of the data, it writes what is expected anew, and keeps the messages. The difference of the files shows what
// it changed. Run at the root of the repository, on any version:
//
//	KEPT_EXPECTED=write .broker/devbroker exec -- go test -C integration -count=1 ./kept
//
// What writes a file belongs to the state of the library whose data it is. The command that wrote these is that of the
// commit 552a1e88, integration/kept/cmd/keep.
//
// # Limits
//
// The messages are published by a client, to the exchange and with the routing key that they had. So these are not as
// they were:
//
//   - x-death is a header of a publisher. RabbitMQ below 4.0 goes on with its counts; from 4.0 on the broker does not
//     read it.
//   - x-delivery-count of a message that was given back begins again at 0.
//   - A message waits the whole delay of its tier again. Those that wait more than a minute are brought home by Drain.
package kept

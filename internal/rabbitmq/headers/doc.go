// Package headers converts deliveries into messages and messages into copies, around the app's own marshaler, so that a
// retried message has the headers and properties that it had the first time.
//
// An app's marshaler knows strings only. What it leaves out travels from Unmarshal to Marshal as one metadata value,
// recordkey.Properties, which never leaves the process. What AMQP would refuse or change on a copy travels to the tier
// and back in headers of this package.
package headers

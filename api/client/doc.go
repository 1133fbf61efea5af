// Package client is how a Go program uses Errand: it submits runs, follows them
// and reads what they wrote.
//
//	c, err := client.New(client.Config{Address: "127.0.0.1:7400", Token: token})
//	run, err := c.Submit(ctx, &errandv1.CreateRunRequest{
//		IdempotencyKey: "nightly-2026-11-30",
//		Spec:           &errandv1.RunSpec{Image: "busybox", Command: []string{"true"}},
//	})
//	run, err = c.Wait(ctx, run.GetId())
//
// Run is both in one call.
//
// Requests and answers are the messages of the public API (messages/errand/v1), so
// a field that the API gains is there at once. A program that has a node inside
// itself gets a Client of it from boot.Instance, without an address, a socket or a
// token.
//
// Calls go on for a while when the node can not be reached, restarts or says that
// the same call may succeed later (Patience). Each call here may be repeated:
// Submit always carries an idempotency key, one of its own if the caller gives none,
// and Logs goes on at the offset that it has reached. ImportImage alone is sent
// once, for its archive can be read only once. What the caller's context says comes
// first: when it ends, the call ends with the context's error.
//
// Every other failure is an *Error with a stable Code. Neither an error nor a Client
// or Config that is printed shows the token.
//
// The package needs the messages, Connect and protobuf, and nothing of the engine.
package client

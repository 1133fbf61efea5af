// Package errandv1 is what users of Errand reach: RunService, NodeService and
// ImageService, for Connect, gRPC and JSON (package errandv1connect has clients and
// handlers).
//
// It shares no type with the stored records, so that either can change without the
// other. Errors carry an ErrorInfo with a stable code.
package errandv1

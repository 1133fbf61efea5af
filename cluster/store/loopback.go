package store

import (
	"context"
	"fmt"
	"net"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
)

const (
	// loopbackName stands where an address would.
	loopbackName = "loopback"
	// loopbackBytes is the room of the connection in memory, each way.
	loopbackBytes = 256 << 10
	// loopbackWindow is how much one stream may have under way, each way: tens of
	// thousands of requests. It is not reserved, only allowed.
	loopbackWindow = 4 << 20
)

// loopback is a gRPC connection within this process, for streams alone. Requests
// that are answered one by one go to the embedded server by function calls. A
// watch stream can not: there the client sends while it does not receive, the
// server answers while it does not receive, and through the bare channels of the
// direct client both end up waiting for the other for ever. Here the windows of
// gRPC lie between them.
type loopback struct {
	listener *bufconn.Listener
}

func newLoopback() *loopback { return &loopback{bufconn.Listen(loopbackBytes)} }

// options are what the server must be made with.
func (l *loopback) options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.InitialWindowSize(loopbackWindow),
		grpc.InitialConnWindowSize(4 * loopbackWindow),
	}
}

// dial makes a client. Closing it does not close the listener.
func (l *loopback) dial(log *zap.Logger) (*clientv3.Client, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{loopbackName},
		Logger:    quiet(log, zapcore.ErrorLevel),
		DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.listener.DialContext(ctx) }),
			grpc.WithNoProxy(),
			grpc.WithInitialWindowSize(loopbackWindow),
			grpc.WithInitialConnWindowSize(4 * loopbackWindow),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("client within the process: %w", err)
	}
	return client, nil
}

package store

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/errand-run/errand/cluster/flight"
	"github.com/errand-run/errand/cluster/records"
)

const (
	dialTimeout = 3 * time.Second
	// keepaliveTime is the least that the library takes; keepaliveTimeout also
	// bounds how long the kernel waits for a segment to be acknowledged.
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 3 * time.Second
	// explainTimeout bounds the look for a better reason than that time is up.
	explainTimeout = 500 * time.Millisecond
)

// connection is one etcd client. A store replaces it when it falls silent.
type connection struct {
	client *clientv3.Client
	// watching carries looks into the past and keepalives if the client does not do so itself.
	watching *clientv3.Client
	// inProcess says that every request reaches its server.
	inProcess bool
	// server streams keys without a connection; nil for a store elsewhere.
	server rangeStreamer
	// changes tells follows what happens without a connection; nil for a store elsewhere.
	changes watchable
	// direct takes writes without the client; nil for a store elsewhere.
	direct *direct
	// counting says that the server has no streams of keys.
	counting atomic.Bool
}

// dial makes a client of the endpoints. It does not wait for them.
func dial(config *Config, log *zap.Logger) (*connection, error) {
	tlsConfig, err := config.tlsConfig()
	if err != nil {
		return nil, records.Errorf(records.ClassInvalid, "store: %w", err)
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            config.Endpoints,
		TLS:                  tlsConfig,
		Username:             config.Username,
		Password:             config.Password,
		DialTimeout:          dialTimeout,
		DialKeepAliveTime:    keepaliveTime,
		DialKeepAliveTimeout: keepaliveTimeout,
		Logger:               quiet(log, zapcore.ErrorLevel),
		DialOptions:          []grpc.DialOption{grpc.WithStatsHandler(sentWatcher{})},
	})
	if err != nil {
		return nil, unreachable(config.Endpoints, err)
	}
	return &connection{client: client}, nil
}

// unreachable says why no endpoint answered. The client itself keeps to "deadline
// exceeded"; a connection of our own tells more.
func unreachable(endpoints []string, err error) error {
	class := classify(err, outcome{})
	if class != records.ClassUnavailable {
		return records.Errorf(class, "etcd at %s: %w", strings.Join(endpoints, ", "), err)
	}
	if wantsUser(err) {
		return records.Errorf(class, "etcd at %s takes only users that it knows, and nothing says who this is: give a certificate whose common name is one of them, "+
			"or let it take whom it does not know by etcdctl auth disable: %w", strings.Join(endpoints, ", "), err)
	}
	reason := err
	for _, endpoint := range endpoints {
		network, address := "tcp", endpoint
		if parsed, parseErr := url.Parse(endpoint); parseErr == nil && parsed.Host+parsed.Path != "" && parsed.Scheme != "" {
			address = parsed.Host
			if strings.HasPrefix(parsed.Scheme, "unix") {
				network, address = "unix", parsed.Host+parsed.Path
			}
		}
		conn, dialErr := net.DialTimeout(network, address, explainTimeout)
		if dialErr != nil {
			reason = dialErr
			break
		}
		_ = conn.Close()
	}
	return records.Errorf(class, "etcd at %s does not answer: %w", strings.Join(endpoints, ", "), reason)
}

func (c *connection) close() {
	_ = c.client.Close()
	if c.watching != nil {
		_ = c.watching.Close()
	}
}

// flight sends a flight and tells whether it left this process.
func (c *connection) flight(ctx context.Context, f *flight.Flight[*pending]) (landing, bool, error) {
	if l, decided, err := c.direct.fly(ctx, f); decided {
		return l, true, err
	}
	response, sent, err := c.children(ctx, f)
	if err != nil {
		return landing{}, sent, err
	}
	return landedOf(f, response), sent, nil
}

// children sends the members of a flight as children of one transaction, and one alone
// as it is.
func (c *connection) children(ctx context.Context, f *flight.Flight[*pending]) (*clientv3.TxnResponse, bool, error) {
	if len(f.Members) == 1 {
		return c.txn(ctx, f.Members[0].Txn)
	}
	children := make([]clientv3.Op, len(f.Members))
	for i, member := range f.Members {
		children[i] = clientv3.OpTxn(compile(member.Txn))
	}
	ctx, sent := c.noteSent(ctx)
	response, err := c.client.Txn(ctx).Then(children...).Commit()
	return response, sent.Load(), err
}

// txn sends one transaction once and tells whether it left this process.
func (c *connection) txn(ctx context.Context, txn records.Txn) (*clientv3.TxnResponse, bool, error) {
	conditions, then, otherwise := compile(txn)
	ctx, sent := c.noteSent(ctx)
	response, err := c.client.Txn(ctx).If(conditions...).Then(then...).Else(otherwise...).Commit()
	return response, sent.Load(), err
}

// revision reads the store's revision through a quorum.
func (c *connection) revision(ctx context.Context) (int64, error) {
	response, err := c.client.Get(ctx, probeKey, clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("read the revision: %w", err)
	}
	return response.Header.GetRevision(), nil
}

// probeKey lies outside of every root and is never written.
const probeKey = "errand-probe"

type sentKey struct{}

// noteSent returns a context whose request sets sent when it leaves this process.
func (c *connection) noteSent(ctx context.Context) (context.Context, *atomic.Bool) {
	sent := new(atomic.Bool)
	sent.Store(c.inProcess)
	return context.WithValue(ctx, sentKey{}, sent), sent
}

// sentWatcher notes when a request is written to a connection. Up to then a
// failure is certain to have done nothing, whatever its code.
type sentWatcher struct{}

func (sentWatcher) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (sentWatcher) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if _, ok := event.(*stats.OutHeader); ok {
		if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
			sent.Store(true)
		}
	}
}

func (sentWatcher) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (sentWatcher) HandleConn(context.Context, stats.ConnStats) {}

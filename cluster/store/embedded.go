package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/errand-run/errand/cluster/lockfile"
	"github.com/errand-run/errand/cluster/records"
)

// Files of an embedded store in its directory.
const (
	lockName   = "LOCK"
	serverName = "etcd"
	// SocketName is the unix socket on which the embedded server listens, for
	// etcdctl and backups. This process does not use it.
	SocketName = "etcd.sock"
)

const (
	// compactionRetention is how long old revisions are kept. A follow that falls
	// further behind starts again with a Reset.
	compactionRetention = "5m"
	// tickMs is short, so that a start takes tens of milliseconds: there are no
	// peers whose silence it would have to tell from slowness.
	tickMs = 20
	// catchUpEntries is how many entries raft keeps in memory beyond what it must.
	catchUpEntries = 100
	// snapshotEntries is after how many entries of its log the server makes a snapshot.
	snapshotEntries = 1000
	// fileTimeout bounds the wait for a file that somebody has open without our lock.
	fileTimeout = time.Second
	// socketPathMax is what Linux takes as the path of a unix socket.
	socketPathMax = 107
)

// embedded is a server in this process.
type embedded struct {
	server *embed.Etcd
	// face serves the socket and the loopback.
	face     *grpc.Server
	loopback *loopback
	serving  sync.WaitGroup
	lock     *os.File
	space    *space
}

// startEmbedded starts a server under dir and returns when it answers.
func startEmbedded(ctx context.Context, dir string, quota int64, log *zap.Logger) (_ *embedded, _ *connection, err error) {
	lock, err := lockDir(dir)
	if err != nil {
		return nil, nil, err
	}
	e := &embedded{lock: lock}
	defer func() {
		if err != nil {
			e.stop()
		}
	}()
	applied, err := checkFile(dir)
	if err != nil {
		return nil, nil, err
	}
	if err = removeTorn(dir); err != nil {
		return nil, nil, err
	}
	e.space = &space{dir: dir, log: log}
	if err = e.space.check(); err != nil {
		return nil, nil, err
	}
	if err = e.run(ctx, quota, behind{dir: dir, applied: applied}); err != nil {
		return nil, nil, err
	}
	e.loopback = newLoopback()
	e.face = v3rpc.Server(e.server.Server, nil, nil, e.loopback.options()...)
	e.serve(e.loopback.listener, log)
	if err = e.listen(filepath.Join(dir, SocketName), log); err != nil {
		return nil, nil, fmt.Errorf("embedded store: %w", err)
	}
	conn, err := e.connect(log)
	if err != nil {
		return nil, nil, fmt.Errorf("embedded store: %w", err)
	}
	return e, conn, nil
}

// run starts the server and returns when it answers, with all the room that can be made
// and held.
func (e *embedded) run(ctx context.Context, quota int64, b behind) error {
	logLeft, err := prepareLog(b.dir, e.space.low.Load())
	if err != nil {
		return err
	}
	start := func() (*embed.Etcd, error) { return embed.StartEtcd(serverConfig(b.dir, quota, e.space.log)) }
	if e.server, err = launch(b.dir, start); err != nil {
		return err
	}
	if err = e.awaitReady(ctx, b); err != nil {
		return err
	}
	e.space.held = newHeld(b.dir, e.server, quota, logLeft)
	if err = e.space.makeRoom(ctx); err != nil {
		return err
	}
	return e.space.look()
}

// awaitReady returns when the server answers, or when it is clear that it will not.
func (e *embedded) awaitReady(ctx context.Context, b behind) error {
	look := time.NewTicker(behindMax / 10)
	defer look.Stop()
	for {
		select {
		case <-e.server.Server.ReadyNotify():
			return nil
		case err := <-e.server.Err():
			return fmt.Errorf("embedded store in %s: %w", b.dir, err)
		case <-e.server.Server.StopNotify():
			return fmt.Errorf("embedded store in %s stopped while it started", b.dir)
		case now := <-look.C:
			if err := b.check(e.server, now); err != nil {
				return err
			}
		case <-ctx.Done():
			return records.Errorf(records.ClassUnavailable, "embedded store in %s is not ready: %w", b.dir, ctx.Err())
		}
	}
}

// connect makes a client that looks into the past and keeps leases alive over the loopback,
// and calls the server directly for everything else.
func (e *embedded) connect(log *zap.Logger) (*connection, error) {
	watching, err := e.loopback.dial(log)
	if err != nil {
		return nil, err
	}
	client := v3client.New(e.server.Server)
	client.Watcher = watching.Watcher
	return &connection{
		client: client, watching: watching, inProcess: true,
		server: e.server.Server, changes: e.server.Server.Watchable(), direct: newDirect(e.server.Server),
	}, nil
}

func serverConfig(dir string, quota int64, log *zap.Logger) *embed.Config {
	config := embed.NewConfig()
	config.Name = serverName
	config.Dir = filepath.Join(dir, serverName)
	config.QuotaBackendBytes = quota
	config.AutoCompactionMode = embed.CompactorModePeriodic
	config.AutoCompactionRetention = compactionRetention
	config.EnableGRPCGateway = false
	// There is no follower to catch up: what raft keeps in memory of the past is memory
	// that a flight of many transactions makes large.
	config.SnapshotCatchUpEntries = catchUpEntries
	// A start reads the log since the last snapshot, flights and all.
	config.SnapshotCount = snapshotEntries
	// A member alone elects itself within one to five ticks.
	config.TickMs = tickMs
	config.ElectionMs = 5 * tickMs
	// There are no users; this provider makes no tokens and says nothing about it.
	config.AuthToken = ""
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(quiet(log, zapcore.WarnLevel))

	// A member of its own: it has no peers, so it listens for none. The address is
	// written into the member list, where it must not change.
	peer := url.URL{Scheme: "unix", Path: "/" + serverName + ".peer"}
	config.ListenPeerUrls = nil
	config.AdvertisePeerUrls = []url.URL{peer}
	config.InitialCluster = serverName + "=" + peer.String()

	// Serving is done by serve, which ends without a complaint.
	config.ListenClientUrls = nil
	config.AdvertiseClientUrls = []url.URL{{Scheme: "unix", Path: filepath.Join(dir, SocketName)}}
	return config
}

// listen lets etcdctl and backups in by a socket that only this user may open.
func (e *embedded) listen(socket string, log *zap.Logger) error {
	if len(socket) > socketPathMax {
		log.Warn("no socket for etcdctl: its path would be too long", zap.String("path", socket))
		return nil
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("socket of an earlier one: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	switch {
	case errors.Is(err, unix.ENOSPC):
		log.Warn("no socket for etcdctl: there is no space for it", zap.String("path", socket))
		return nil
	case err != nil:
		return fmt.Errorf("socket: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		_ = listener.Close()
		return fmt.Errorf("socket: %w", err)
	}
	e.serve(listener, log)
	return nil
}

// serve answers on a listener until the server stops.
func (e *embedded) serve(listener net.Listener, log *zap.Logger) {
	e.serving.Go(func() {
		if err := e.face.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			log.Error("a listener of the embedded store ended", zap.Stringer("address", listener.Addr()), zap.Error(err))
		}
	})
}

// stop ends the server. The lock goes last.
func (e *embedded) stop() {
	if e.face != nil {
		e.face.Stop()
	}
	e.serving.Wait()
	if e.server != nil {
		ended := keepSpare(e.space.dir)
		e.server.Close()
		ended()
	}
	if e.lock != nil {
		_ = e.lock.Close()
	}
}

// lockDir makes the directory ours for as long as the returned file is open. The
// kernel drops the lock with the process, however that ends. Without it a second
// server would wait for ever for the first one's file.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of the embedded store: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of the embedded store: %w", err)
	}
	lock, err := lockfile.Take(filepath.Join(dir, lockName))
	var taken *lockfile.TakenError
	switch {
	case errors.As(err, &taken):
		return nil, records.Errorf(records.ClassConflict, "%s is held by another daemon%s: stop it or choose another data directory", dir, taken.By())
	case err != nil:
		return nil, fmt.Errorf("embedded store: %w", err)
	}
	return lock, nil
}

// quiet keeps what an operator must act on: the level and above, less what a
// server says on every start.
func quiet(log *zap.Logger, level zapcore.Level) *zap.Logger {
	return log.Named("etcd").WithOptions(
		zap.AddStacktrace(zapcore.FatalLevel), zap.WithFatalHook(lastWord{log}), zap.WithPanicHook(keptPanic{}),
		zap.WrapCore(func(core zapcore.Core) zapcore.Core { return quietCore{core, level} }),
	)
}

// lastWord says in plain words what it means that a server ends the process: it does so
// when the disk refuses a write or a sync, since nobody knows then what is on it.
type lastWord struct{ log *zap.Logger }

// OnWrite implements zapcore.CheckWriteHook. It does not return.
func (w lastWord) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	w.log.Error("the embedded store can not go on, so this process ends; the line before says why. " +
		"What runs goes on: see to the disk and start again")
	zapcore.WriteThenFatal.OnWrite(entry, fields)
}

// usual is in each line that a fresh server says of itself without a cause: a
// port that it does not open, a storage version that it writes a few seconds
// later, a cluster version that a stop cuts short, an election that waits for the
// next tick, a quota that somebody has chosen.
var usual = []string{
	"Running http and grpc server on single port.",
	"Failed to detect schema version",
	"failed to update storage version",
	"failed to update cluster version",
	"cannot campaign at term",
	"quota exceeds the maximum value",
}

type quietCore struct {
	zapcore.Core
	level zapcore.Level
}

func (c quietCore) Enabled(level zapcore.Level) bool {
	return level >= c.level && c.Core.Enabled(level)
}

func (c quietCore) With(fields []zapcore.Field) zapcore.Core {
	return quietCore{c.Core.With(fields), c.level}
}

func (c quietCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	isUsual := slices.ContainsFunc(usual, func(text string) bool { return strings.Contains(entry.Message, text) })
	if !c.Enabled(entry.Level) || isUsual {
		return checked
	}
	return c.Core.Check(entry, checked)
}

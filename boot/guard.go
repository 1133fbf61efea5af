package boot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/nodes/fence"
	"github.com/errand-run/errand/nodes/fence/page"
)

const (
	// guardInterval is how often the daemon looks whether its guard is at work, and
	// guardPause how long it gives one that it has started.
	guardInterval = time.Second
	guardPause    = 5 * time.Second
)

// guardKeeper sees to it that a node whose session can end has a fence, and a guard
// that kills by it when this daemon can not.
type guardKeeper struct {
	settings settings
	log      *zap.Logger
	storage  *nodeStorage

	// file is nil for a node that is alone.
	file   *page.File
	cancel context.CancelFunc
	kept   chan struct{}
}

func newGuardKeeper(order *sequence, config settings, parts Parts, storage *nodeStorage) *guardKeeper {
	k := &guardKeeper{settings: config, log: parts.log("guard"), storage: storage}
	order.add(stage{name: "guard", startTimeout: 20 * time.Second, stopTimeout: 10 * time.Second, start: k.start, stop: k.stop})
	return k
}

// port is the fence for the node's actor.
func (k *guardKeeper) port() nodes.Fence {
	if k.file == nil {
		return nil
	}
	return fencePort{k.file}
}

// start waits until a guard is at work: nothing may run by a deadline that nobody
// keeps.
func (k *guardKeeper) start(ctx context.Context) error {
	if k.settings.solo() {
		return nil
	}
	var err error
	if k.file, err = page.Open(k.settings.RuntimeDir, k.storage.uuid); err != nil {
		return err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	k.cancel, k.kept = cancel, make(chan struct{})
	atWork := make(chan struct{})
	go func() {
		defer close(k.kept)
		k.keep(running, atWork)
	}()
	select {
	case <-atWork:
		return nil
	case <-ctx.Done():
		because := k.file.AtWork()
		stopErr := k.stop(ctx)
		return errors.Join(fmt.Errorf("no guard is at work, and a node on an outside etcd needs one (errand-node guard): %w", because), stopErr)
	}
}

// keep starts a guard whenever none is at work, and says so. It closes atWork when
// there is one for the first time.
func (k *guardKeeper) keep(ctx context.Context, atWork chan<- struct{}) {
	ticker := time.NewTicker(guardInterval / 5)
	defer ticker.Stop()
	var startAgain time.Time
	missing, known := false, false
	for {
		switch err := k.file.AtWork(); {
		case err == nil && !known:
			known = true
			ticker.Reset(guardInterval)
			close(atWork)
		case err == nil && missing:
			missing = false
			k.log.Info("a guard is at work again")
		case err != nil:
			if known && !missing {
				missing = true
				k.log.Error("no guard is at work: if this daemon dies too, what runs here can outlive its session", zap.Error(err))
			}
			if k.settings.GuardBinary != "" && time.Now().After(startAgain) {
				startAgain = time.Now().Add(guardPause)
				if err := k.startGuard(ctx); err != nil {
					k.log.Error("the guard can not be started", zap.Error(err))
				}
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// startGuard starts a guard that outlives this daemon; it ends at once if there is one.
func (k *guardKeeper) startGuard(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, guardPause)
	defer cancel()
	command := exec.CommandContext(ctx, k.settings.GuardBinary, "guard", "--detach",
		"--data", k.settings.DataDir, "--runtime-dir", k.settings.RuntimeDir)
	command.Stderr = os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Run(); err != nil {
		return fmt.Errorf("%s guard --detach: %w", k.settings.GuardBinary, err)
	}
	return nil
}

// stop leaves the guard alone: what runs goes on without the daemon, and the deadline
// with it.
func (k *guardKeeper) stop(context.Context) error {
	if k.file == nil {
		return nil
	}
	k.cancel()
	<-k.kept
	err := k.file.Close()
	k.file = nil
	return err
}

// fencePort is a fence as the node's actor sees it.
type fencePort struct{ file *page.File }

var _ nodes.Fence = fencePort{}

func (p fencePort) Load() (nodes.FenceState, bool) {
	state, ok := p.file.Load()
	return nodes.FenceState(state), ok
}

func (p fencePort) Arm(state nodes.FenceState) { p.file.Arm(page.State(state)) }

// Guard is the guard of the node that has this configuration, for the life of the
// context: it kills what the node runs once its session is over (package fence). It
// waits for a node that has never been started. With stay it goes on for ever, as a
// unit of its own; else it ends when there is nothing left to guard.
func Guard(ctx context.Context, config Config, stay bool, log *zap.Logger) error {
	config, err := config.Complete()
	if err != nil {
		return err
	}
	if err := fence.Harden(); err != nil {
		log.Warn("the guard is less safe than it could be", zap.Error(err))
	}
	path := filepath.Join(config.DataDir, uuidFile)
	uuid, err := readUUID(path)
	for err == nil && uuid == "" {
		select {
		case <-time.After(guardInterval):
			uuid, err = readUUID(path)
		case <-ctx.Done():
			return nil
		}
	}
	if err != nil {
		return err
	}
	guard := fence.Guard{Dir: config.RuntimeDir, UUID: uuid, Stay: stay, Log: log}
	return guard.Run(ctx)
}

// GuardLogPath is where a guard writes its log that this node has started.
func GuardLogPath(config Config) (string, error) {
	uuid, err := readUUID(filepath.Join(config.DataDir, uuidFile))
	if err == nil && uuid == "" {
		err = fmt.Errorf("no node was ever started on %s", config.DataDir)
	}
	return filepath.Join(config.RuntimeDir, "guard-"+uuid+".log"), err
}

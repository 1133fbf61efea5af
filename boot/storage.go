package boot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/fx"

	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/nodes/journal"
	"github.com/errand-run/errand/nodes/logs"
)

// nodeStorage is what this machine keeps for itself: the journal, and the folder
// of logs. Its start only reads; nothing is watched yet.
type nodeStorage struct {
	config  Config
	journal *journal.Journal
	logDir  string
	// uuid names this data directory for ever; all that is ours carries it.
	uuid string
}

func newNodeStorage(lifecycle fx.Lifecycle, config Config, _ *clusterAccess) *nodeStorage {
	s := &nodeStorage{config: config, logDir: filepath.Join(config.DataDir, "logs")}
	add(lifecycle, part{name: "node storage", startTimeout: 20 * time.Second, stopTimeout: 10 * time.Second, start: s.start, stop: s.stop})
	return s
}

// attemptLog names the directory of an attempt's log.
func (s *nodeStorage) attemptLog(run string, attempt int32) string {
	return logs.Dir(s.logDir, run, attempt)
}

func (s *nodeStorage) start(ctx context.Context) error {
	if err := os.MkdirAll(s.logDir, 0o711); err != nil {
		return fmt.Errorf("log directory: %w", err)
	}
	var err error
	if s.journal, err = journal.Open(s.config.DataDir); err != nil {
		return err
	}
	content, err := loadJournal(ctx, s.journal)
	if err != nil {
		return errors.Join(err, s.journal.Close())
	}
	if s.uuid = content.Meta.GetUuid(); s.uuid == "" {
		s.uuid = nodes.NewUUID(systemRand{})
	}
	return nil
}

func loadJournal(ctx context.Context, j nodes.Journal) (nodes.JournalContent, error) {
	type loaded struct {
		content nodes.JournalContent
		err     error
	}
	done := make(chan loaded, 1)
	j.Load(func(content nodes.JournalContent, err error) { done <- loaded{content, err} })
	select {
	case l := <-done:
		return l.content, l.err
	case <-ctx.Done():
		return nodes.JournalContent{}, fmt.Errorf("load journal: %w", ctx.Err())
	}
}

func (s *nodeStorage) stop(context.Context) error { return s.journal.Close() }

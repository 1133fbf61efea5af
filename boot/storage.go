package boot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/nodes/journal"
	"github.com/errand-run/errand/nodes/logs"
)

// uuidFile holds the node's uuid below the data directory, beside the journal: if
// that is lost, what runs here is still known as ours.
const uuidFile = "node.uuid"

// nodeStorage is what this machine keeps for itself: the journal, and the folder
// of logs. Its start only reads; nothing is watched yet.
type nodeStorage struct {
	settings settings
	log      *zap.Logger
	cluster  *clusterAccess
	journal  *journal.Journal
	logDir   string
	// uuid names this data directory for ever; all that is ours carries it.
	uuid string
}

func newNodeStorage(order *sequence, config settings, parts Parts, cluster *clusterAccess) *nodeStorage {
	s := &nodeStorage{settings: config, log: parts.log("storage"), cluster: cluster, logDir: filepath.Join(config.DataDir, "logs")}
	order.add(stage{name: "node storage", startTimeout: 20 * time.Second, stopTimeout: 10 * time.Second, start: s.start, stop: s.stop})
	return s
}

// attemptLog names the path of an attempt's log.
func (s *nodeStorage) attemptLog(run string, attempt int32) string {
	return logs.Path(s.logDir, run, attempt)
}

func (s *nodeStorage) start(ctx context.Context) error {
	return ownership(s.settings.DataDir, s.open(ctx))
}

// open makes the folder of logs and opens the journal.
func (s *nodeStorage) open(ctx context.Context) error {
	err := os.MkdirAll(s.logDir, 0o711)
	if err == nil {
		err = writable(s.logDir)
	}
	if err != nil {
		return fmt.Errorf("directory of logs: %w", err)
	}
	if s.journal, err = journal.Open(s.settings.DataDir, s.settings.RuntimeDir); err != nil {
		return err
	}
	content, err := loadJournal(ctx, s.journal)
	if err != nil {
		return errors.Join(err, s.journal.Close())
	}
	if s.uuid, err = s.identity(ctx, content.Meta.GetUuid()); err == nil {
		err = s.keepUUID()
	}
	if err != nil {
		return errors.Join(err, s.journal.Close())
	}
	return nil
}

// keepUUID writes the uuid down, unless it stands there already.
func (s *nodeStorage) keepUUID() error {
	path := filepath.Join(s.settings.DataDir, uuidFile)
	if kept, err := readUUID(path); err != nil || kept == s.uuid {
		return err
	}
	if err := os.WriteFile(path+".new", []byte(s.uuid+"\n"), 0o600); err != nil {
		return fmt.Errorf("keep the node's uuid: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("keep the node's uuid: %w", err)
	}
	return nil
}

func readUUID(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read the node's uuid: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// identity is the uuid of the journal, or of the node that the store remembers
// when the loss of its journal was accepted, or the one that was written down, or
// a new one.
func (s *nodeStorage) identity(ctx context.Context, journaled string) (string, error) {
	lost := s.settings.AcceptLossOf == LossOfJournal
	if s.settings.AcceptLossOf != "" {
		s.log.Warn("a loss is accepted: start without --accept-loss-of the next time", zap.String("of", s.settings.AcceptLossOf))
	}
	if journaled != "" {
		if lost {
			return "", fmt.Errorf("accept the loss of the journal: %s is there and is that of a node; if it is to be given up, move it away first",
				filepath.Join(s.settings.DataDir, journal.FileName))
		}
		return journaled, nil
	}
	if lost {
		result, err := s.cluster.store.Do(ctx, records.Read(records.Get(s.cluster.keys.NodeInfo(s.settings.Name))))
		if err != nil {
			return "", fmt.Errorf("read what the store knows of node %s: %w", s.settings.Name, err)
		}
		if kv, ok := result.First(0); ok {
			info := &recordv1.NodeInfo{}
			if err := records.Decode(kv, info); err != nil {
				return "", err
			}
			return info.GetUuid(), nil
		}
	}
	kept, err := readUUID(filepath.Join(s.settings.DataDir, uuidFile))
	if err != nil || kept != "" {
		return kept, err
	}
	return nodes.NewUUID(systemRand{}), nil
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

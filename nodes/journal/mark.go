package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// mark remembers how far a journal has come, apart from the disk that holds the
// journal: in memory of the machine that outlives the daemon. A journal that has
// come less far is an older copy that somebody has put back. The mark follows the
// journal, so one that is lost or behind hides a copy and accuses none.
type mark struct{ file *os.File }

// markMagic stands before the position, which is 8 bytes, the least significant
// first.
const markMagic = "errand1\n"

// openMark opens the mark of the journal with this id, and makes it if there is
// none. The directory must be nobody else's to write.
func openMark(dir, id string) (*mark, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("runtime directory: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("runtime directory: %w", err)
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("runtime directory %s: others may write there; give another one or mend its owner and mode: %w", dir, fs.ErrPermission)
	}
	file, err := os.OpenFile(filepath.Join(dir, "journal-"+id+".mark"), os.O_CREATE|os.O_RDWR, fileMode)
	if err != nil {
		return nil, fmt.Errorf("mark of the journal: %w", err)
	}
	m := &mark{file: file}
	if m.position() == 0 {
		// The room is taken now, so that a full memory shows here and not later.
		if _, err := file.WriteAt(append([]byte(markMagic), make([]byte, 8)...), 0); err != nil {
			return nil, errors.Join(fmt.Errorf("mark of the journal: %w", err), file.Close())
		}
	}
	return m, nil
}

// position is how far the journal has come; 0 when nobody has marked that.
func (m *mark) position() uint64 {
	if m == nil {
		return 0
	}
	content := make([]byte, len(markMagic)+8)
	if _, err := m.file.ReadAt(content, 0); err != nil || string(content[:len(markMagic)]) != markMagic {
		return 0
	}
	return binary.LittleEndian.Uint64(content[len(markMagic):])
}

// advance marks that what comes up to a position is durable.
func (m *mark) advance(position uint64) {
	if m == nil {
		return
	}
	// A mark that stays behind hides a copy, and the write that it follows is done.
	_, _ = m.file.WriteAt(binary.LittleEndian.AppendUint64(nil, position), int64(len(markMagic)))
}

func (m *mark) close() error {
	if m == nil {
		return nil
	}
	return m.file.Close()
}

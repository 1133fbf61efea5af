package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
)

// Several nodes may share a containerd, and all of them share the runtime's state, which
// goes by namespace and id. An id follows from the run's, and a run's from its idempotency
// key: two nodes with stores of their own, or one before and after its data were lost, can
// so come to the same id. What is there under it is then another's, and nothing of it may
// be touched.

// runcStateMax bounds what is read of the runtime's state.
const runcStateMax = 4 << 20

// othersRecord tells whose the records of an id are that containerd holds, empty when they
// are this node's or nobody's.
func (d *Driver) othersRecord(ctx context.Context, id string) (owner string, err error) {
	step, cancel := own(ctx, recordMax)
	defer cancel()
	// The lease is made first and removed last.
	found, err := d.leases.List(step, "id=="+id)
	if err != nil {
		return "", filtered(err, "look up the lease of", id)
	}
	for _, lease := range found {
		if node := lease.Labels[labelNode]; node != "" {
			return d.other(node), nil
		}
	}
	container, err := d.client.ContainerService().Get(step, id)
	switch {
	case errdefs.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", filtered(err, "look up the container", id)
	}
	return d.other(container.Labels[labelNode]), nil
}

func (d *Driver) other(node string) string {
	if node == "" || node == d.config.NodeUUID {
		return ""
	}
	return "node " + node
}

// othersState tells by the runtime's state of an id below whose cgroup its container is.
// A state that can not be read tells nothing.
func (d *Driver) othersState(id string) string {
	file, err := os.Open(filepath.Join(runcRoot, d.config.Namespace, id, "state.json"))
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	var state struct {
		Config struct {
			Cgroups struct {
				Path string `json:"path"`
			} `json:"cgroups"`
		} `json:"config"`
	}
	if json.NewDecoder(io.LimitReader(file, runcStateMax)).Decode(&state) != nil || state.Config.Cgroups.Path == "" {
		return ""
	}
	parent := path.Base(path.Dir(state.Config.Cgroups.Path))
	if parent == d.parent.Name() || !strings.HasPrefix(parent, cgroup.ParentName("")) {
		return ""
	}
	return "the node with cgroup " + parent
}

// taken says that an id is another's. The run's next placement has another one.
func taken(owner string) error {
	return sandbox.Transientf(recordv1.Reason_REASON_START_ERROR, "there is a sandbox of that id already, of %s: "+
		"another node of this machine, or this one before its data were lost, has a run of the same id", owner)
}

// leaveOthers removes what this node has of an id that is another's, which is its directory
// and its cgroup, and nothing else. done is false when the id is not another's.
func (d *Driver) leaveOthers(ctx context.Context, id string, owner string) (done bool, err error) {
	if owner == "" {
		if owner, err = d.othersRecord(ctx, id); err != nil || owner == "" {
			return false, err
		}
	}
	step, cancel := own(ctx, groupMax)
	defer cancel()
	if err := d.parent.Group(id).Remove(step); err != nil {
		return true, fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return true, d.removeDir(id)
}

// unmade tells that a sandbox has no directory: that Create has not come that far, or
// that it is gone.
func (d *Driver) unmade(id string) bool {
	_, err := os.Lstat(d.dir(id))
	return errors.Is(err, fs.ErrNotExist)
}

package boot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/errand-run/errand/api"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images/authfile"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images/registry"
)

// imageConfig is how images are pulled. Files that can not be read are found at the
// start, and not by the first run that needs them.
func (h *sandboxHost) imageConfig() (images.Config, error) {
	config := registry.Config{AuthFile: h.settings.RegistryAuth, CAFile: h.settings.RegistryCA, PlainHTTP: h.settings.RegistryPlain}
	if err := config.Check(); err != nil {
		return images.Config{}, err
	}
	counted, err := images.NewMetrics(h.metrics)
	if err != nil {
		return images.Config{}, err
	}
	return images.Config{Registry: config, PullsMax: int(h.settings.ImagePulls), Observe: counted}, nil
}

// images is nil without the containerd driver.
func (h *sandboxHost) images() api.Images {
	if h.containerd == nil {
		return nil
	}
	return nodeImages{h.containerd.Images()}
}

// pulls is nil without the containerd driver.
func (h *sandboxHost) pulls() api.Pulls {
	if h.containerd == nil {
		return nil
	}
	return nodePulls{h.containerd.Images()}
}

// nodeImages shows containerd's images to the API.
type nodeImages struct{ store *images.Store }

func (n nodeImages) Import(ctx context.Context, name string, archive io.Reader) ([]api.Image, error) {
	imported, err := n.store.Import(ctx, name, archive)
	return apiImages(imported), err
}

func (n nodeImages) List(ctx context.Context) ([]api.Image, error) {
	found, err := n.store.List(ctx)
	return apiImages(found), err
}

func (n nodeImages) Remove(ctx context.Context, name string) (string, error) {
	return n.store.Remove(ctx, name)
}

func (n nodeImages) Pull(
	ctx context.Context, typed string, credential *errandv1.RegistryCredential, progress func(*errandv1.ImagePull),
) (api.Image, error) {
	name, err := images.Normalize(typed)
	if err != nil {
		return api.Image{}, records.Errorf(records.ClassInvalid, "%w", err)
	}
	request := images.PullRequest{Name: name}
	if credential != nil {
		request.Credential = &authfile.Credential{
			Username: credential.GetUsername(), Password: credential.GetPassword(), IdentityToken: credential.GetIdentityToken(),
		}
	}
	pulled, err := n.store.Pull(ctx, request, func(p sandbox.PullProgress) { progress(publicPull(p)) })
	var start *sandbox.StartError
	switch {
	case err == nil:
		return apiImages([]images.Image{pulled})[0], nil
	case ctx.Err() != nil:
		return api.Image{}, fmt.Errorf("pull image: %w", ctx.Err())
	case errors.As(err, &start) && start.Reason == recordv1.Reason_REASON_IMAGE_NOT_FOUND:
		return api.Image{}, records.Errorf(records.ClassNotFound, "%s", whyNotPulled(start))
	case errors.As(err, &start):
		return api.Image{}, records.Errorf(records.ClassUnavailable, "%s", whyNotPulled(start))
	}
	return api.Image{}, err
}

// whyNotPulled leaves out what was done to which image: the caller has asked for it, and
// is told so.
func whyNotPulled(failed *sandbox.StartError) string {
	if rest, ok := strings.CutPrefix(failed.Message, "pull image "); ok {
		if _, why, ok := strings.Cut(rest, ": "); ok {
			return why
		}
	}
	return failed.Message
}

func apiImages(found []images.Image) []api.Image {
	shown := make([]api.Image, len(found))
	for i, image := range found {
		shown[i] = api.Image{
			Name: image.Name, Digest: image.Digest, SizeBytes: image.SizeBytes, ImportedAt: image.Imported,
			PulledAt: image.Pulled, UsedAt: image.Used,
		}
	}
	return shown
}

// nodePulls shows the pulls to the API.
type nodePulls struct{ of sandbox.Pulls }

func (n nodePulls) PullOf(run string) (*errandv1.ImagePull, bool) {
	progress, ok := n.of.PullOf(run)
	return publicPull(progress), ok
}

func (n nodePulls) Pulls() []*errandv1.ImagePull {
	all := n.of.Pulls()
	shown := make([]*errandv1.ImagePull, len(all))
	for i, progress := range all {
		shown[i] = publicPull(progress)
	}
	return shown
}

// publicPull relies on the phases of both having the same numbers; a test compares them.
func publicPull(p sandbox.PullProgress) *errandv1.ImagePull {
	return &errandv1.ImagePull{
		Reference: p.Reference, Phase: errandv1.PullPhase(p.Phase), Bytes: p.Bytes, TotalBytes: p.Total, BytesPerSecond: p.Rate,
		Since: instant(p.Since), Layers: int32(p.Layers), LayersDone: int32(p.LayersDone), //nolint:gosec // bounded by images.LayersMax
		LastError: p.LastError, RetryAt: instant(p.RetryAt), Runs: p.Runs,
	}
}

func instant(at time.Time) *timestamppb.Timestamp {
	if at.IsZero() {
		return nil
	}
	return timestamppb.New(at)
}

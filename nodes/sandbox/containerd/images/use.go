package images

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// The labels of images in containerd: when Errand pulled them, and when a sandbox was
// last made of them. An image without the first is somebody else's, or was imported.
const (
	labelPulled = "errand/pulled-at"
	labelUsed   = "errand/used-at"
	// labelPull marks the lease of a pull.
	labelPull = "errand/pull"
)

const (
	reasonNotFound = recordv1.Reason_REASON_IMAGE_NOT_FOUND
	reasonPull     = recordv1.Reason_REASON_IMAGE_PULL
)

// uses are the images that sandboxes are being made of, and when others last were.
type uses struct {
	mu    sync.Mutex
	held  map[string]int
	since map[string]time.Time // not written down yet
}

// Hold keeps an image from being collected until release is called, which notes that it
// was used. The image need not be there.
func (s *Store) Hold(name string) (release func()) {
	s.uses.mu.Lock()
	defer s.uses.mu.Unlock()
	s.uses.held[name]++
	return func() {
		s.uses.mu.Lock()
		defer s.uses.mu.Unlock()
		if s.uses.held[name]--; s.uses.held[name] == 0 {
			delete(s.uses.held, name)
		}
		s.uses.since[name] = s.config.Now()
	}
}

// publishPulled gives a pulled image its name. A name that meant the same image before
// keeps what is known of its use.
func (s *Store) publishPulled(ctx context.Context, image images.Image) (images.Image, error) {
	service := s.client.ImageService()
	for try := 0; ; try++ {
		before, err := service.Get(ctx, image.Name)
		switch {
		case errdefs.IsNotFound(err):
			created, err := service.Create(ctx, image)
			if errdefs.IsAlreadyExists(err) && try == 0 {
				continue
			}
			return created, err
		case err != nil:
			return before, err
		case before.Target.Digest == image.Target.Digest && before.Labels[labelPulled] == "":
			return before, nil // it was imported, and is not ours to collect
		}
		labels := maps.Clone(before.Labels)
		if labels == nil {
			labels = map[string]string{}
		}
		labels[labelPulled] = image.Labels[labelPulled]
		image.Labels = labels
		updated, err := service.Update(ctx, image, "target", "labels")
		if errdefs.IsNotFound(err) && try == 0 {
			continue
		}
		return updated, err
	}
}

// inUse returns the names of the images that sandboxes are, or are being, made of.
func (s *Store) inUse(ctx context.Context) (map[string]bool, error) {
	used := map[string]bool{}
	containers, err := s.client.ContainerService().List(ctx)
	if err != nil {
		return nil, err
	}
	for _, container := range containers {
		used[container.Image] = true
	}
	s.uses.mu.Lock()
	defer s.uses.mu.Unlock()
	for name := range s.uses.held { //errand:unordered a set
		used[name] = true
	}
	return used, nil
}

// stamp reads one of our labels.
func stamp(image images.Image, label string) time.Time {
	at, err := time.Parse(time.RFC3339, image.Labels[label])
	if err != nil {
		return time.Time{}
	}
	return at
}

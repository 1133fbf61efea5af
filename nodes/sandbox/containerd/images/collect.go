package images

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/sandbox/containerd/quiet"
)

const (
	// AgeMaxDefault is how long a pulled image is kept that nothing uses.
	AgeMaxDefault = 30 * 24 * time.Hour
	// DiskShareDefault is which part of the disk, one in so many, pulled images may take
	// where no bound in bytes is set.
	DiskShareDefault = 4
	// CollectEvery is how often images are collected.
	CollectEvery = time.Hour
	// collectGrace keeps what was pulled or used a moment ago, whatever it takes.
	collectGrace = 10 * time.Minute
	// useKept is how exactly the time of the last use is written down.
	useKept = time.Minute
)

// Bounds are those of what pulled images take. A negative one is none.
type Bounds struct {
	// AgeMax is how long an image is kept that nothing uses. Default AgeMaxDefault.
	AgeMax time.Duration
	// BytesMax is what pulled images may take: their blobs and their unpacked layers,
	// each once. Default: one part in DiskShareDefault of their disk.
	BytesMax int64
}

// Collection is what a collection did.
type Collection struct {
	// Removed are the names of the images that went, in order.
	Removed []string
	// Bytes is what the pulled images take now.
	Bytes int64
}

// pulledImage is one that may be collected.
type pulledImage struct {
	image images.Image
	used  time.Time
	parts map[string]int64
}

// Collect removes the images that Errand has pulled into this namespace and that nothing
// has used for long, and then those that were used longest ago until what is left fits.
// An image that a sandbox is, or is being, made of stays, and so does one that was pulled
// or used within the last minutes. Imported images and those of others are not touched.
func (s *Store) Collect(ctx context.Context, bounds Bounds) (Collection, error) {
	ctx = quiet.Context(ctx)
	if bounds.AgeMax == 0 {
		bounds.AgeMax = AgeMaxDefault
	}
	if bounds.BytesMax == 0 {
		bounds.BytesMax = s.diskShare(ctx)
	}
	found, err := s.pulledImages(ctx)
	if err != nil {
		return Collection{}, classify("collect images", err)
	}
	used, err := s.inUse(ctx)
	if err != nil {
		return Collection{}, classify("collect images", err)
	}
	shares, total := map[string]int{}, int64(0)
	for _, one := range found {
		for part, size := range one.parts { //errand:unordered a sum
			if shares[part]++; shares[part] == 1 {
				total += size
			}
		}
	}
	var done Collection
	for _, one := range found {
		idle := s.config.Now().Sub(one.used)
		tooOld := bounds.AgeMax > 0 && idle > bounds.AgeMax
		tooMuch := bounds.BytesMax > 0 && total > bounds.BytesMax
		if used[one.image.Name] || idle < collectGrace || !tooOld && !tooMuch {
			continue
		}
		if err := s.client.ImageService().Delete(ctx, one.image.Name); err != nil && !errdefs.IsNotFound(err) {
			return done, classify("collect image "+one.image.Name, err)
		}
		for part, size := range one.parts { //errand:unordered a sum
			if shares[part]--; shares[part] == 0 {
				total -= size
			}
		}
		done.Removed = append(done.Removed, one.image.Name)
		s.config.Log.Info("image collected", zap.String("image", one.image.Name), zap.Duration("unused", idle), zap.Bool("old", tooOld))
	}
	done.Bytes = total
	s.config.Observe.collection(len(done.Removed), total)
	return done, nil
}

// pulledImages returns the images that may be collected, those that were used longest ago
// first, and writes down when they were.
func (s *Store) pulledImages(ctx context.Context) ([]pulledImage, error) {
	list, err := s.client.ImageService().List(ctx)
	if err != nil {
		return nil, err
	}
	s.uses.mu.Lock()
	since := maps.Clone(s.uses.since)
	s.uses.mu.Unlock()
	var found []pulledImage
	usage := map[string]int64{}
	for _, image := range list {
		pulled := stamp(image, labelPulled)
		if pulled.IsZero() {
			continue
		}
		one := pulledImage{image: image, used: pulled, parts: map[string]int64{}}
		if written := stamp(image, labelUsed); written.After(one.used) {
			one.used = written
		}
		if at := since[image.Name]; at.Sub(one.used) > useKept {
			if err := s.writeUse(ctx, image, at); err != nil {
				return nil, err
			}
		}
		if at := since[image.Name]; at.After(one.used) {
			one.used = at
		}
		if err := s.weigh(ctx, one, usage); err != nil {
			return nil, fmt.Errorf("size image %s: %w", image.Name, err)
		}
		found = append(found, one)
	}
	s.forgetUses(since)
	slices.SortFunc(found, func(a, b pulledImage) int {
		return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.image.Name, b.image.Name))
	})
	return found, nil
}

// writeUse keeps the time of the last use where it outlives the daemon.
func (s *Store) writeUse(ctx context.Context, image images.Image, at time.Time) error {
	image.Labels = maps.Clone(image.Labels)
	image.Labels[labelUsed] = at.UTC().Format(time.RFC3339)
	_, err := s.client.ImageService().Update(ctx, image, "labels."+labelUsed)
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// forgetUses drops the uses that are written down, and those of images that are not ours.
func (s *Store) forgetUses(known map[string]time.Time) {
	s.uses.mu.Lock()
	defer s.uses.mu.Unlock()
	for name, at := range known { //errand:unordered each stands for itself
		if s.uses.since[name].Equal(at) && s.config.Now().Sub(at) > collectGrace {
			delete(s.uses.since, name)
		}
	}
}

// weigh adds up an image's blobs and unpacked layers, by what they are, so that what
// images share counts once.
func (s *Store) weigh(ctx context.Context, one pulledImage, usage map[string]int64) error {
	cs := s.client.ContentStore()
	children := images.FilterPlatforms(images.ChildrenHandler(cs), platforms.Default())
	err := images.Walk(ctx, images.HandlerFunc(func(ctx context.Context, blob ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		one.parts[blob.Digest.String()] = blob.Size
		return children(ctx, blob)
	}), one.image.Target)
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	layers, err := one.image.RootFS(ctx, cs, platforms.Default())
	if err != nil {
		if errdefs.IsNotFound(err) {
			return nil
		}
		return err
	}
	for _, chain := range identity.ChainIDs(layers) {
		key := "snapshot " + chain.String()
		size, known := usage[key]
		if !known {
			took, err := s.client.SnapshotService(s.config.Snapshotter).Usage(ctx, chain.String())
			if err != nil && !errdefs.IsNotFound(err) {
				return err
			}
			size = took.Size
			usage[key] = size
		}
		one.parts[key] = size
	}
	return nil
}

// diskShare is the default bound in bytes; -1, none, when containerd does not say on
// which disk its layers lie.
func (s *Store) diskShare(ctx context.Context) int64 {
	answer, err := s.client.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1", "id=="+s.config.Snapshotter)
	if err != nil {
		return -1
	}
	for _, plugin := range answer.GetPlugins() {
		var disk unix.Statfs_t
		if root := plugin.GetExports()["root"]; plugin.GetID() == s.config.Snapshotter && root != "" && unix.Statfs(root, &disk) == nil {
			return int64(disk.Blocks) * disk.Bsize / DiskShareDefault //nolint:gosec // a disk has fewer bytes
		}
	}
	return -1
}

// Keep collects now and then until the context ends.
func (s *Store) Keep(ctx context.Context, bounds Bounds) {
	if bounds.AgeMax < 0 && bounds.BytesMax < 0 {
		return
	}
	timer := time.NewTimer(collectGrace)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if _, err := s.Collect(ctx, bounds); err != nil && ctx.Err() == nil {
			s.config.Log.Warn("images could not be collected; it is tried again", zap.Error(err))
		}
		timer.Reset(CollectEvery)
	}
}

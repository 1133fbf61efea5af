package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images/registry"
)

const (
	// LayersMax bounds the layers of an image.
	LayersMax = 512
	// indexDepthMax is how many indexes may lead to a manifest.
	indexDepthMax = 4
	// fetchesMax is how many layers of one image are fetched at a time.
	fetchesMax = 3
	// resumeMax is how old the lease of a pull that was broken off may be for the next
	// one to go on from it. No pull outlives it to the end of the lease.
	resumeMax = leaseMax / 2
	// leasePrefix begins the ids of the leases of pulls.
	leasePrefix = "errand-pull-"
)

// leaseID is the lease under which a pull keeps what it has, so that the next one of the
// same image finds it.
func (f *flight) leaseID() string {
	sum := sha256.Sum256([]byte(f.key))
	return leasePrefix + hex.EncodeToString(sum[:16])
}

// lease returns the lease of an earlier pull that was broken off, or a new one. containerd
// ends it by itself when nobody has come back to it within a day.
func (f *flight) lease(ctx context.Context) (leases.Lease, error) {
	manager, id := f.of.store.client.LeasesService(), f.leaseID()
	for try := 0; ; try++ {
		lease, err := manager.Create(ctx, leases.WithID(id), leases.WithExpiration(leaseMax), leases.WithLabels(map[string]string{labelPull: f.name}))
		if err == nil || !errdefs.IsAlreadyExists(err) || try > 0 {
			return lease, err
		}
		found, err := manager.List(ctx, "id=="+id)
		if err != nil {
			return leases.Lease{}, err
		}
		if len(found) == 1 && time.Since(found[0].CreatedAt) < resumeMax {
			return found[0], nil
		}
		if err := manager.Delete(ctx, leases.Lease{ID: id}); err != nil && !errdefs.IsNotFound(err) {
			return leases.Lease{}, err
		}
	}
}

// try pulls the image once. What it has fetched stays for the next try, unless the image
// turned out not to be one.
func (f *flight) try(ctx context.Context) (Image, error) {
	s := f.of.store
	session, err := s.config.Registry.Open(f.host, f.given)
	if err != nil {
		return Image{}, err
	}
	defer session.Close()
	f.meter.over(session)
	lease, err := f.lease(ctx)
	if err != nil {
		return Image{}, f.explain(ctx, session, err)
	}
	image, err := f.fetch(leases.WithLease(ctx, lease.ID), session)
	var failure *registry.Failure
	if err != nil {
		err = f.explain(ctx, session, err)
	}
	if err == nil || errors.As(err, &failure) && failure.NotFound {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupMax)
		defer cancel()
		_ = s.client.LeasesService().Delete(cleanup, lease) // else containerd ends it
	}
	return image, err
}

// fetch resolves the name, fetches manifest, configuration and layers in this order, each
// checked before the next, unpacks and publishes.
func (f *flight) fetch(ctx context.Context, session *registry.Session) (Image, error) {
	f.meter.enter(sandbox.PullResolving)
	_, target, err := session.Resolver.Resolve(ctx, f.name)
	if err != nil {
		return Image{}, err
	}
	fetcher, err := session.Resolver.Fetcher(ctx, f.name)
	if err != nil {
		return Image{}, err
	}
	fetcher = metered{Fetcher: fetcher, meter: &f.meter}
	manifest, err := f.fetchManifest(ctx, fetcher, target)
	if err != nil {
		return Image{}, err
	}
	if err := f.fetchConfig(ctx, fetcher, manifest); err != nil {
		return Image{}, err
	}
	f.meter.enter(sandbox.PullFetching)
	if err := f.fetchLayers(ctx, fetcher, manifest.Layers); err != nil {
		return Image{}, err
	}
	f.meter.enter(sandbox.PullUnpacking)
	return f.of.store.settle(ctx, images.Image{Name: f.name, Target: target}, manifest.Layers)
}

// fetchManifest fetches the manifest for this machine.
func (f *flight) fetchManifest(ctx context.Context, fetcher remotes.Fetcher, target ocispec.Descriptor) (ocispec.Manifest, error) {
	for depth := 0; ; depth++ {
		switch {
		case !images.IsManifestType(target.MediaType) && !images.IsIndexType(target.MediaType):
			return ocispec.Manifest{}, notAnImage("%s is not an image: registry %s serves it as %q", f.name, f.host, clipped(target.MediaType))
		case target.Size > registry.ManifestBytesMax:
			return ocispec.Manifest{}, notAnImage("the manifest of image %s has %d bytes, more than %d", f.name, target.Size, int64(registry.ManifestBytesMax))
		case depth > indexDepthMax:
			return ocispec.Manifest{}, notAnImage("image %s is an index of indexes, more than %d deep", f.name, indexDepthMax)
		}
		blob, err := f.fetchSmall(ctx, fetcher, target)
		if err != nil {
			return ocispec.Manifest{}, err
		}
		if images.IsManifestType(target.MediaType) {
			return f.parseManifest(blob)
		}
		var index ocispec.Index
		if err := json.Unmarshal(blob, &index); err != nil {
			return ocispec.Manifest{}, notAnImage("the index of image %s is not JSON", f.name)
		}
		if target, err = f.choose(index.Manifests); err != nil {
			return ocispec.Manifest{}, err
		}
	}
}

func (f *flight) parseManifest(blob []byte) (ocispec.Manifest, error) {
	var manifest ocispec.Manifest
	if err := json.Unmarshal(blob, &manifest); err != nil {
		return manifest, notAnImage("the manifest of image %s is not JSON", f.name)
	}
	switch size := sizeOf(manifest); {
	case !images.IsConfigType(manifest.Config.MediaType):
		return manifest, notAnImage("%s is not an image: its configuration is %q", f.name, clipped(manifest.Config.MediaType))
	case manifest.Config.Size <= 0 || manifest.Config.Size > ConfigBytesMax:
		return manifest, notAnImage("the configuration of image %s has %d bytes, not 1 to %d", f.name, manifest.Config.Size, ConfigBytesMax)
	case len(manifest.Layers) > LayersMax:
		return manifest, notAnImage("image %s has %d layers, more than %d", f.name, len(manifest.Layers), LayersMax)
	case size < 0 || size > f.of.store.config.ArchiveBytesMax:
		return manifest, notAnImage("image %s has more than %d bytes", f.name, f.of.store.config.ArchiveBytesMax)
	}
	for _, layer := range manifest.Layers {
		if !images.IsLayerType(layer.MediaType) {
			return manifest, notAnImage("%s is not an image: one of its layers is %q", f.name, clipped(layer.MediaType))
		}
	}
	f.meter.expect(sizeOf(manifest), len(manifest.Layers))
	return manifest, nil
}

// sizeOf is what configuration and layers have in bytes; below 0 when that can not be.
func sizeOf(manifest ocispec.Manifest) int64 {
	size := manifest.Config.Size
	for _, layer := range manifest.Layers {
		if layer.Size < 0 || size+layer.Size < size {
			return -1
		}
		size += layer.Size
	}
	return size
}

// choose returns the manifest of an index that fits this machine best.
func (f *flight) choose(manifests []ocispec.Descriptor) (ocispec.Descriptor, error) {
	fits := platforms.Default()
	var matching []ocispec.Descriptor
	var others []string
	for _, manifest := range manifests {
		switch {
		case manifest.Platform == nil, fits.Match(*manifest.Platform):
			// One that names no machine says in its configuration which it is for.
			matching = append(matching, manifest)
		case manifest.Platform.OS != "unknown" && len(others) < 16:
			others = append(others, clipped(platforms.Format(platforms.Normalize(*manifest.Platform))))
		}
	}
	if len(manifests) == 0 {
		return ocispec.Descriptor{}, notAnImage("image %s is an index of nothing", f.name)
	}
	if len(matching) == 0 {
		return ocispec.Descriptor{}, notAnImage("image %s has no variant for this machine (%s); it has: %s", f.name, platforms.DefaultString(), strings.Join(others, ", "))
	}
	sort.SliceStable(matching, func(i, j int) bool {
		if a, b := matching[i].Platform, matching[j].Platform; a != nil && b != nil {
			return fits.Less(*a, *b)
		}
		return matching[i].Platform != nil && matching[j].Platform == nil
	})
	return matching[0], nil
}

// fetchConfig fetches the configuration and checks that the image is for this machine.
func (f *flight) fetchConfig(ctx context.Context, fetcher remotes.Fetcher, manifest ocispec.Manifest) error {
	blob, err := f.fetchSmall(ctx, fetcher, manifest.Config)
	if err != nil {
		return err
	}
	var config ocispec.Image
	switch err := json.Unmarshal(blob, &config); {
	case err != nil:
		return notAnImage("the configuration of image %s is not JSON", f.name)
	case len(config.RootFS.DiffIDs) != len(manifest.Layers):
		return notAnImage("image %s has %d layers and a configuration of %d", f.name, len(manifest.Layers), len(config.RootFS.DiffIDs))
	case config.OS != "" && !platforms.Default().Match(platforms.Normalize(config.Platform)):
		return notAnImage("image %s is for %s, and this machine is %s", f.name, clipped(platforms.Format(platforms.Normalize(config.Platform))), platforms.DefaultString())
	}
	return nil
}

// fetchSmall fetches a blob that was found to be small, and reads it.
func (f *flight) fetchSmall(ctx context.Context, fetcher remotes.Fetcher, blob ocispec.Descriptor) ([]byte, error) {
	if images.IsManifestType(blob.MediaType) || images.IsIndexType(blob.MediaType) {
		f.meter.expect(blob.Size, 0)
	}
	if err := f.fetchBlob(ctx, fetcher, blob); err != nil {
		return nil, err
	}
	blob.Data = nil
	return content.ReadBlob(ctx, f.of.store.client.ContentStore(), blob)
}

// fetchBlob brings a blob into the content store, where an earlier pull may have begun
// it. One that turns out wrong is thrown away, or no later try could go on from it.
func (f *flight) fetchBlob(ctx context.Context, fetcher remotes.Fetcher, blob ocispec.Descriptor) error {
	if err := blob.Digest.Validate(); err != nil {
		return notAnImage("the manifest of image %s names a blob that has no digest", f.name)
	}
	blob.URLs, blob.Data = nil, nil
	cs := f.of.store.client.ContentStore()
	_, err := remotes.FetchHandler(cs, fetcher)(ctx, blob)
	if err == nil {
		f.meter.at(blob.Digest, blob.Size)
		return nil
	}
	if errdefs.IsFailedPrecondition(err) {
		_ = cs.Abort(ctx, remotes.MakeRefKey(ctx, blob)) // there may be nothing left of it
		return &registry.Failure{Text: fmt.Sprintf("registry %s sends what is not the content of %s", f.host, blob.Digest)}
	}
	if errdefs.IsNotFound(err) {
		return &registry.Failure{Text: fmt.Sprintf("registry %s lacks %s, a part of the image", f.host, blob.Digest)}
	}
	return err
}

// fetchLayers fetches a few at a time; the first error ends all.
func (f *flight) fetchLayers(ctx context.Context, fetcher remotes.Fetcher, layers []ocispec.Descriptor) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var work sync.WaitGroup
	var once sync.Once
	var first error
	turns := make(chan struct{}, fetchesMax)
	for _, layer := range layers {
		work.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			err := ctx.Err()
			if err == nil {
				err = f.fetchBlob(ctx, fetcher, layer)
			}
			if err != nil {
				once.Do(func() { first = err; cancel() })
				return
			}
			f.meter.landedLayer()
		})
	}
	work.Wait()
	return first
}

// settle unpacks an image whose content is there, and gives it its name.
func (s *Store) settle(ctx context.Context, image images.Image, layers []ocispec.Descriptor) (Image, error) {
	cs := s.client.ContentStore()
	walk := images.SetChildrenLabels(cs, images.LimitManifests(images.FilterPlatforms(images.ChildrenHandler(cs), platforms.Default()), platforms.Default(), 1))
	if err := images.WalkNotEmpty(ctx, walk, image.Target); err != nil {
		return Image{}, err
	}
	handle := containerd.NewImage(s.client, image)
	unpacked, err := handle.IsUnpacked(ctx, s.config.Snapshotter)
	if err != nil {
		return Image{}, err
	}
	if !unpacked {
		var compressed int64
		for _, layer := range layers {
			compressed += layer.Size
		}
		if err := s.measure(ctx, compressed, []images.Image{image}); err != nil {
			return Image{}, err
		}
		if err := handle.Unpack(ctx, s.config.Snapshotter); err != nil {
			return Image{}, err
		}
	}
	if _, err := s.read(ctx, image); err != nil {
		return Image{}, err
	}
	image.Labels = map[string]string{labelPulled: time.Now().UTC().Format(time.RFC3339)}
	stored, err := s.publishPulled(ctx, image)
	if err != nil {
		return Image{}, err
	}
	size, err := stored.Size(ctx, cs, platforms.Default())
	if err != nil {
		return Image{}, err
	}
	return describe(stored, size), nil
}

func notAnImage(format string, args ...any) error {
	return &registry.Failure{NotFound: true, Text: fmt.Sprintf(format, args...)}
}

// explain says why a try failed: a *registry.Failure where it is the registry's or the
// image's fault, the end of the context, or an error with a class.
func (f *flight) explain(ctx context.Context, session *registry.Session, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var unpacked *unpackedError
	if errors.As(err, &unpacked) {
		return notAnImage("image %s has %d bytes and unpacks to more than %d", f.name, unpacked.archive, unpacked.most)
	}
	if failure := session.Explain(f.name, err); failure != nil {
		return failure
	}
	switch {
	case errdefs.IsUnavailable(err):
		return records.Errorf(records.ClassUnavailable, "pull image %s: containerd can not be reached", f.name)
	case errors.Is(err, syscall.ENOSPC), strings.Contains(err.Error(), "no space left on device"):
		return &registry.Failure{Text: "no space left on the node's disk"}
	case strings.Contains(err.Error(), wrongDiffID):
		// The bytes are those that the manifest names: no registry will have better ones.
		return notAnImage("image %s is damaged: a layer of it does not unpack to what its configuration says", f.name)
	case danglingLink.MatchString(err.Error()):
		return notAnImage("image %s is damaged: a layer of it has a hard link to what is not there", f.name)
	case errdefs.IsInvalidArgument(err), records.ClassOf(err) == records.ClassInvalid:
		return notAnImage("%s is not an image that this node can take: %s", f.name, clipped(session.Safe(err.Error())))
	}
	return &registry.Failure{Text: clipped(session.Safe(reasonOf(err)))}
}

// wrongDiffID are containerd's words for a layer that is another one when it is unpacked
// than its image says; they have no class.
const wrongDiffID = "wrong diff id calculated on extraction"

// danglingLink are the words for a layer with a hard link whose other name no layer has;
// they have no class either.
var danglingLink = regexp.MustCompile(`mount callback failed on .*\blink \S*/containerd-mount[0-9]+/\S* .*: no such file or directory`)

// unpackedAt is where containerd unpacks, which means nothing to others.
var unpackedAt = regexp.MustCompile(`\S*/containerd-mount[0-9]+/?`)

// reasonOf returns the words of an error; of a layer that can not be unpacked first the
// cause, then where in the image.
func reasonOf(err error) string {
	text := err.Error()
	_, why, ok := strings.Cut(text, "mount callback failed on ")
	if !ok {
		return text
	}
	_, why, _ = strings.Cut(why, ": ")
	words := "a layer can not be unpacked"
	if at := strings.LastIndex(why, ": "); at >= 0 {
		words += ": " + why[at+2:]
		why = why[:at]
	}
	return words + ": " + unpackedAt.ReplaceAllString(why, "")
}

// clipped cuts somebody else's words.
func clipped(text string) string {
	const most = 200
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "..."
	}
	return text
}

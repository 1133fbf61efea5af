package images

import (
	"context"
	"encoding/json"
	"errors"
	"sort"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/zap"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images/registry"
	"github.com/errand-run/errand/nodes/sandbox/containerd/quiet"
)

const (
	// ArchiveBytesMax bounds an archive, uncompressed, where Config sets no bound.
	ArchiveBytesMax = int64(16) << 30
	// ConfigBytesMax bounds the configuration of an image: what is read into memory.
	ConfigBytesMax = int64(4) << 20
	// DescribedMax bounds how many images' configurations are kept in memory.
	DescribedMax = 256
	// SnapshotterDefault is the snapshotter where Config names none.
	SnapshotterDefault = "overlayfs"
)

// Config says how images are kept.
type Config struct {
	// Snapshotter unpacks the layers. Default SnapshotterDefault.
	Snapshotter string
	// ArchiveBytesMax bounds an archive. Default ArchiveBytesMax.
	ArchiveBytesMax int64
	// Registry says how images are pulled.
	Registry registry.Config
	// PullsMax is how many are pulled at a time. Default PullsMax.
	PullsMax int
	// Observe counts. Default: nobody does.
	Observe *Metrics
	// Log hears of what was pulled, or not, and collected. Default: nobody.
	Log *zap.Logger
	// Now is time.Now unless set; it dates uses.
	Now func() time.Time
	// UnpackedBytesMin is what any archive may unpack to; beyond it UnpackedRatioMax
	// counts. Default UnpackedBytesMin.
	UnpackedBytesMin int64
}

// Image is one image of the node.
type Image struct {
	// Name is normalised.
	Name   string
	Digest string
	// SizeBytes counts the blobs, layers compressed as they were imported.
	SizeBytes int64
	// Imported is when this name was last given to this image.
	Imported time.Time
	// Pulled is when it was last pulled, Used when a sandbox was last made of it; zero
	// for an image that was imported.
	Pulled, Used time.Time
}

// Details are what a sandbox needs to know of an image.
type Details struct {
	Name   string
	Digest string
	// ChainID is the snapshot that holds the unpacked layers: the parent of every
	// sandbox's own. It is empty for an image without layers.
	ChainID string
	Config  ocispec.ImageConfig
}

// Store keeps images in one namespace of one containerd. Its methods may be called
// from many goroutines; their errors are classed (records.Class).
type Store struct {
	client    *containerd.Client
	config    Config
	described sync.Map // digest of the target -> Details without a name
	puller    *puller
	uses      uses
	mu        sync.Mutex
	count     int
}

// New returns the store of the client's default namespace. It is to be closed before the
// client.
func New(client *containerd.Client, config Config) *Store {
	if config.Snapshotter == "" {
		config.Snapshotter = SnapshotterDefault
	}
	if config.ArchiveBytesMax <= 0 {
		config.ArchiveBytesMax = ArchiveBytesMax
	}
	if config.UnpackedBytesMin <= 0 {
		config.UnpackedBytesMin = UnpackedBytesMin
	}
	if config.PullsMax <= 0 {
		config.PullsMax = PullsMax
	}
	if config.Log == nil {
		config.Log = zap.NewNop()
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	s := &Store{client: client, config: config, uses: uses{held: map[string]int{}, since: map[string]time.Time{}}}
	s.puller = newPuller(s, config.PullsMax)
	return s
}

// List returns the images, by name.
func (s *Store) List(ctx context.Context) ([]Image, error) {
	ctx = quiet.Context(ctx)
	list, err := s.client.ImageService().List(ctx)
	if err != nil {
		return nil, classify("list images", err)
	}
	result := make([]Image, 0, len(list))
	for _, image := range list {
		size, err := image.Size(ctx, s.client.ContentStore(), platforms.Default())
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, classify("size image "+image.Name, err)
		}
		result = append(result, describe(image, size))
	}
	sort.Slice(result, func(i, j int) bool { return result[i].Name < result[j].Name })
	return result, nil
}

func describe(image images.Image, size int64) Image {
	imported := image.UpdatedAt
	if imported.IsZero() {
		imported = image.CreatedAt
	}
	made := Image{Name: image.Name, Digest: image.Target.Digest.String(), SizeBytes: size, Imported: imported}
	if made.Pulled = stamp(image, labelPulled); !made.Pulled.IsZero() {
		made.Imported, made.Used = made.Pulled, stamp(image, labelUsed)
	}
	return made
}

// Describe returns what a sandbox needs to know of an image. An image that is not
// there is of records.ClassNotFound, one whose content makes no sense of
// records.ClassInvalid. The name is resolved every time, for it may have been given
// to another image; the rest is kept in memory.
func (s *Store) Describe(ctx context.Context, name string) (Details, error) {
	image, err := s.client.ImageService().Get(ctx, name)
	if err != nil {
		return Details{}, classify("look up image "+name, err)
	}
	if known, ok := s.described.Load(image.Target.Digest); ok {
		details := known.(Details)
		details.Name = name
		return details, nil
	}
	details, err := s.read(ctx, image)
	if err != nil {
		return Details{}, err
	}
	s.remember(image.Target.Digest, details)
	return details, nil
}

func (s *Store) remember(target digest.Digest, details Details) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count >= DescribedMax {
		s.described.Clear()
		s.count = 0
	}
	if _, known := s.described.Swap(target, details); !known {
		s.count++
	}
}

// read reads an image's configuration out of the content store.
func (s *Store) read(ctx context.Context, image images.Image) (Details, error) {
	cs := s.client.ContentStore()
	desc, err := image.Config(ctx, cs, platforms.Default())
	if err != nil {
		return Details{}, classify("read image "+image.Name, err)
	}
	if desc.Size > ConfigBytesMax {
		return Details{}, records.Errorf(records.ClassInvalid, "the configuration of image %s has %d bytes, more than %d", image.Name, desc.Size, ConfigBytesMax)
	}
	blob, err := content.ReadBlob(ctx, cs, desc)
	if err != nil {
		return Details{}, classify("read image "+image.Name, err)
	}
	var parsed ocispec.Image
	if err := json.Unmarshal(blob, &parsed); err != nil {
		return Details{}, records.Errorf(records.ClassInvalid, "the configuration of image %s is not JSON", image.Name)
	}
	details := Details{Name: image.Name, Digest: image.Target.Digest.String(), Config: parsed.Config}
	if len(parsed.RootFS.DiffIDs) > 0 {
		details.ChainID = identity.ChainID(parsed.RootFS.DiffIDs).String()
	}
	return details, nil
}

// Unpack makes sure that the snapshot of an image's layers exists: a snapshotter
// that was changed or cleaned lacks it.
func (s *Store) Unpack(ctx context.Context, name string) error {
	image, err := s.client.ImageService().Get(ctx, name)
	if err != nil {
		return classify("look up image "+name, err)
	}
	if err := containerd.NewImage(s.client, image).Unpack(ctx, s.config.Snapshotter); err != nil {
		return classify("unpack image "+name, err)
	}
	return nil
}

// classify gives containerd's errors a class. Its texts about images hold names,
// digests and paths of archives, and nothing of an environment.
func classify(what string, err error) error {
	class := records.ClassInternal
	switch {
	case errors.Is(err, context.DeadlineExceeded), errdefs.IsDeadlineExceeded(err), errors.Is(err, context.Canceled), errdefs.IsCanceled(err):
		class = records.ClassDeadline
	case errdefs.IsUnavailable(err):
		class = records.ClassUnavailable
	case errdefs.IsNotFound(err):
		class = records.ClassNotFound
	case errdefs.IsInvalidArgument(err), errdefs.IsFailedPrecondition(err):
		class = records.ClassInvalid
	}
	return records.Errorf(class, "%s: %w", what, err)
}

package images

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox/containerd/quiet"
)

const (
	// leaseMax is after how long containerd itself ends the lease of an import whose
	// daemon died.
	leaseMax = 24 * time.Hour
	// cleanupMax bounds how long an import's lease may take to go.
	cleanupMax = 30 * time.Second
	// ImagesMax bounds the images of one archive.
	ImagesMax = 64
)

var (
	errManyNamed = errors.New("the archive holds several images, and a name (--name) is for an archive of one: import it without")
	errTooLarge  = errors.New("the archive is too large")
	errNoName    = errors.New("the archive's image has no name: give it one with --name (the field name of the request)")
)

// Import stores the images of a docker or OCI archive, plain or with gzip, that
// reader streams, and returns them unpacked and ready, each name once. name, unless it
// is empty, stands for all names that the archive gives its one image; an archive of
// several images takes none. What is not an archive, is cut short, unpacks to far more
// than it is, or does not fit this machine is of records.ClassInvalid and leaves
// nothing behind; an error of reader itself is returned as it is.
func (s *Store) Import(ctx context.Context, name string, reader io.Reader) ([]Image, error) {
	ctx = quiet.Context(ctx)
	if name != "" {
		normal, err := Normalize(name)
		if err != nil {
			return nil, records.Errorf(records.ClassInvalid, "%w", err)
		}
		name = normal
	}
	manager := s.client.LeasesService()
	lease, err := manager.Create(ctx, leases.WithRandomID(), leases.WithExpiration(leaseMax))
	if err != nil {
		return nil, classify("lease its content", err)
	}
	// With the lease goes what the import left: blobs and snapshots of a failed one.
	defer func() {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupMax)
		defer cancel()
		_ = manager.Delete(cleanup, lease, leases.SynchronousDelete)
	}()
	ctx = leases.WithLease(ctx, lease.ID)

	source := &source{reader: reader, left: s.config.ArchiveBytesMax, unpackedMin: s.config.UnpackedBytesMin}
	found, err := s.ingest(ctx, name, source)
	if err != nil {
		return nil, explain(source, s.config.ArchiveBytesMax, err)
	}
	result := make([]Image, 0, len(found))
	for _, image := range found {
		stored, err := s.publish(ctx, image)
		if err != nil {
			return nil, classify("store image "+image.Name, err)
		}
		size, err := stored.Size(ctx, s.client.ContentStore(), platforms.Default())
		if err != nil {
			return nil, classify("size image "+image.Name, err)
		}
		result = append(result, describe(stored, size))
	}
	return result, nil
}

// ingest stores an archive's blobs and unpacks its images. None has a name in
// containerd yet.
func (s *Store) ingest(ctx context.Context, name string, source *source) ([]images.Image, error) {
	plain, err := decompress(source)
	if err != nil {
		return nil, err
	}
	cs := s.client.ContentStore()
	index, err := archive.ImportIndex(ctx, cs, plain)
	if err != nil {
		return nil, err
	}
	found, err := s.named(ctx, name, index)
	if err != nil {
		return nil, err
	}
	walk := images.SetChildrenLabels(cs, images.FilterPlatforms(images.ChildrenHandler(cs), platforms.Default()))
	for _, image := range found {
		if err := images.WalkNotEmpty(ctx, walk, image.Target); err != nil {
			return nil, err
		}
	}
	if err := s.measure(ctx, source.read, found); err != nil {
		return nil, err
	}
	for _, image := range found {
		if err := containerd.NewImage(s.client, image).Unpack(ctx, s.config.Snapshotter); err != nil {
			return nil, err
		}
		if _, err := s.read(ctx, image); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// named returns the images of an archive's index under their normalised names.
func (s *Store) named(ctx context.Context, name string, index ocispec.Descriptor) ([]images.Image, error) {
	blob, err := content.ReadBlob(ctx, s.client.ContentStore(), index)
	if err != nil {
		return nil, err
	}
	var parsed ocispec.Index
	if err := json.Unmarshal(blob, &parsed); err != nil {
		return nil, fmt.Errorf("its index is not JSON: %w", errdefs.ErrInvalidArgument)
	}
	if len(parsed.Manifests) == 0 || len(parsed.Manifests) > ImagesMax {
		return nil, fmt.Errorf("it holds %d images, not 1 to %d: %w", len(parsed.Manifests), ImagesMax, errdefs.ErrInvalidArgument)
	}
	if name != "" {
		first := parsed.Manifests[0]
		for _, manifest := range parsed.Manifests {
			if manifest.Digest != first.Digest {
				return nil, errManyNamed
			}
		}
		return []images.Image{{Name: name, Target: first}}, nil
	}
	return ownNames(parsed.Manifests)
}

// ownNames gives the images of an archive the names that it gives them, each once.
// Among several, those without a name are parts of others.
func ownNames(manifests []ocispec.Descriptor) ([]images.Image, error) {
	found := make([]images.Image, 0, len(manifests))
	digests := map[string]digest.Digest{}
	for _, manifest := range manifests {
		own := manifest.Annotations[images.AnnotationImageName]
		if own == "" {
			own = manifest.Annotations[ocispec.AnnotationRefName]
		}
		if own == "" {
			continue
		}
		normal, err := Normalize(own)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
		}
		switch other, twice := digests[normal]; {
		case !twice:
			digests[normal] = manifest.Digest
			found = append(found, images.Image{Name: normal, Target: manifest})
		case other != manifest.Digest:
			return nil, fmt.Errorf("it names two images %s: %w", normal, errdefs.ErrInvalidArgument)
		}
	}
	if len(found) == 0 {
		return nil, errNoName
	}
	return found, nil
}

// publish gives an image its name.
func (s *Store) publish(ctx context.Context, image images.Image) (images.Image, error) {
	service := s.client.ImageService()
	// Its labels go: what is imported is not collected.
	stored, err := service.Update(ctx, image, "target", "labels")
	if errdefs.IsNotFound(err) {
		stored, err = service.Create(ctx, image)
	}
	return stored, err
}

// source is the archive as it comes in: bounded, and remembering an error that is
// the sender's and not the archive's.
type source struct {
	reader io.Reader
	left   int64
	// unpackedMin is what may come out of it however small it is.
	unpackedMin int64
	// read counts the bytes that came in.
	read int64
	err  error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.reader.Read(p)
	s.read += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// bounded cuts an archive off at its largest size, decompressed.
type bounded struct {
	reader io.Reader
	left   int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLarge
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.reader.Read(p)
	b.left -= int64(n)
	return n, err
}

// decompress returns the plain archive: gzip is recognised by its first bytes.
func decompress(source *source) (io.Reader, error) {
	buffered := bufio.NewReaderSize(source, 64<<10)
	magic, err := buffered.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(magic) == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	if len(magic) < 2 || magic[0] != 0x1f || magic[1] != 0x8b {
		return &bounded{reader: buffered, left: source.left}, nil
	}
	plain, err := gzip.NewReader(buffered)
	if err != nil {
		return nil, err
	}
	return &bounded{reader: &proportioned{plain: plain, source: source}, left: source.left}, nil
}

// explain says what an import failed of, in the order of who is to blame: the
// sender, the machine, the archive.
func explain(source *source, sizeMax int64, err error) error {
	invalid := func(text string) error {
		return records.Errorf(records.ClassInvalid, "%s", text)
	}
	var unpacked *unpackedError
	switch {
	case source.err != nil:
		return source.err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errdefs.IsUnavailable(err), errdefs.IsCanceled(err), errdefs.IsDeadlineExceeded(err):
		return classify("store its content", err)
	case errors.Is(err, errTooLarge):
		return invalid(fmt.Sprintf("the archive has more than %d bytes", sizeMax))
	case errors.Is(err, errNoName), errors.Is(err, errManyNamed):
		return invalid(err.Error())
	case errors.As(err, &unpacked):
		return invalid(unpacked.Error())
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return invalid("the archive ends before its content does: it was cut short")
	case errors.Is(err, tar.ErrHeader), errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum):
		return invalid("this is not an archive of docker or OCI images")
	case errdefs.IsNotFound(err):
		return invalid("the archive lacks a part of its image, or the image is not for this machine (" + platforms.DefaultString() + ")")
	case errdefs.IsResourceExhausted(err):
		return records.Errorf(records.ClassInternal, "%w", err)
	}
	return invalid("it can not be taken in: " + err.Error())
}

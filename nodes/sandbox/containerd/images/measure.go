package images

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// UnpackedRatioMax is how many times its own size an archive may unpack to.
	UnpackedRatioMax = 100
	// UnpackedBytesMin is what any archive may unpack to, where Config sets nothing else.
	UnpackedBytesMin = int64(1) << 30
)

// unpackedError is returned when an archive would fill the disk with next to nothing.
type unpackedError struct{ archive, most int64 }

func (e *unpackedError) Error() string {
	return fmt.Sprintf("the archive has %d bytes and unpacks to more than %d: an archive may unpack to %d times its size", e.archive, e.most, UnpackedRatioMax)
}

// unpackedMax is what an archive of so many bytes may unpack to.
func unpackedMax(archive, least int64) int64 { return max(least, archive*UnpackedRatioMax) }

// proportioned is a compressed archive's content, up to what so much of the archive as
// was read may unpack to.
type proportioned struct {
	plain  io.Reader
	source *source
	taken  int64
}

func (p *proportioned) Read(b []byte) (int, error) {
	n, err := p.plain.Read(b)
	p.taken += int64(n)
	if most := unpackedMax(p.source.read, p.source.unpackedMin); p.taken > most {
		return 0, &unpackedError{archive: p.source.read, most: most}
	}
	return n, err
}

// measure refuses images whose layers unpack to more than an archive of so many bytes
// may. The layers are read for it once more than unpacking does: containerd knows no
// bound.
func (s *Store) measure(ctx context.Context, archive int64, found []images.Image) error {
	most := unpackedMax(archive, s.config.UnpackedBytesMin)
	left := most
	measured := map[digest.Digest]bool{}
	for _, image := range found {
		manifest, err := images.Manifest(ctx, s.client.ContentStore(), image.Target, platforms.Default())
		if err != nil {
			return err
		}
		for _, layer := range manifest.Layers {
			if measured[layer.Digest] {
				continue
			}
			measured[layer.Digest] = true
			if left, err = s.measureLayer(ctx, layer, left); err != nil {
				return err
			}
			if left < 0 {
				return &unpackedError{archive: archive, most: most}
			}
		}
	}
	return nil
}

// damaged hides the cause's kind: what is wrong with a layer is not wrong with the archive
// around it.
func damaged(err error) error {
	if errdefs.IsUnavailable(err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("a layer of it is damaged: %s: %w", err.Error(), errdefs.ErrInvalidArgument)
}

// measureLayer takes what a layer unpacks to from left, which is below 0 as soon as it
// is too much. A file with holes counts in full.
func (s *Store) measureLayer(ctx context.Context, layer ocispec.Descriptor, left int64) (int64, error) {
	reader, err := s.client.ContentStore().ReaderAt(ctx, layer)
	if err != nil {
		return left, err
	}
	defer func() { _ = reader.Close() }() // it was only read
	plain, err := compression.DecompressStream(content.NewReader(reader))
	if err != nil {
		return left, damaged(err)
	}
	defer func() { _ = plain.Close() }()
	// The entries' headers count too, lest an archive of nothing but headers is free.
	raw := &bounded{reader: plain, left: left}
	entries := tar.NewReader(raw)
	var files int64
	for ctx.Err() == nil {
		header, err := entries.Next()
		switch {
		case errors.Is(err, io.EOF):
			return min(raw.left, left-files), nil
		case errors.Is(err, errTooLarge):
			return -1, nil
		case err != nil:
			return left, damaged(err)
		}
		if files += header.Size; files < 0 || files > left {
			return -1, nil
		}
	}
	return left, ctx.Err()
}

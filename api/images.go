package api

import (
	"context"
	"io"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// imageService implements errandv1connect.ImageServiceHandler.
type imageService struct {
	*Server
}

func noImages() error {
	return fail(codes.NoImages, "the node keeps no images: its containerd driver is not enabled")
}

// Import implements errandv1connect.ImageServiceHandler.
func (s *imageService) Import(ctx context.Context, stream *connect.ClientStream[errandv1.ImportImageRequest]) (*errandv1.ImportImageResponse, error) {
	if s.config.Images == nil {
		return nil, noImages()
	}
	upload := &archive{stream: stream, left: importBytesMax}
	if !upload.receive() && upload.err != nil {
		return nil, upload.err
	}
	if name := upload.name; name != "" {
		c := &checker{}
		if c.image("", name); len(c.violations) > 0 {
			return nil, invalid([]Violation{{Field: "name", Text: c.violations[0].Text}})
		}
	}
	images, err := s.config.Images.Import(ctx, upload.name, upload)
	switch {
	case upload.err != nil && err != nil:
		// What ended the upload is the cause, whatever the archive's reader made of it.
		return nil, upload.err
	case records.ClassOf(err) == records.ClassInvalid && err != nil:
		return nil, fail(codes.ImageInvalid, "import the archive: %w", err)
	case err != nil:
		return nil, storeError(ctx, "import the archive", err)
	}
	return &errandv1.ImportImageResponse{Images: publicImages(images)}, nil
}

// List implements errandv1connect.ImageServiceHandler.
func (s *imageService) List(ctx context.Context, _ *errandv1.ListImagesRequest) (*errandv1.ListImagesResponse, error) {
	if s.config.Images == nil {
		return nil, noImages()
	}
	images, err := s.config.Images.List(ctx)
	if err != nil {
		return nil, storeError(ctx, "list images", err)
	}
	return &errandv1.ListImagesResponse{Images: publicImages(images)}, nil
}

// Pull implements errandv1connect.ImageServiceHandler.
func (s *imageService) Pull(ctx context.Context, request *errandv1.PullImageRequest, stream *connect.ServerStream[errandv1.PullImageResponse]) error {
	if s.config.Images == nil {
		return noImages()
	}
	c := &checker{}
	c.imageName(request.GetName())
	c.credential(request.GetCredential())
	if len(c.violations) > 0 {
		return invalid(c.violations)
	}
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	var sendErr error
	image, err := s.config.Images.Pull(ctx, request.GetName(), request.GetCredential(), func(pull *errandv1.ImagePull) {
		if sendErr = stream.Send(&errandv1.PullImageResponse{Progress: pull}); sendErr != nil {
			cancel() // nobody listens any more
		}
	})
	switch {
	case sendErr != nil:
		return sendErr
	case err != nil:
		return imageError(ctx, "pull "+request.GetName(), err)
	}
	return stream.Send(&errandv1.PullImageResponse{Image: publicImages([]Image{image})[0]})
}

// Remove implements errandv1connect.ImageServiceHandler.
func (s *imageService) Remove(ctx context.Context, request *errandv1.RemoveImageRequest) (*errandv1.RemoveImageResponse, error) {
	if s.config.Images == nil {
		return nil, noImages()
	}
	c := &checker{}
	if c.imageName(request.GetName()); len(c.violations) > 0 {
		return nil, invalid(c.violations)
	}
	name, err := s.config.Images.Remove(ctx, request.GetName())
	if err != nil {
		return nil, imageError(ctx, "remove "+request.GetName(), err)
	}
	return &errandv1.RemoveImageResponse{Name: name}, nil
}

// imageError translates what became of one image.
func imageError(ctx context.Context, doing string, err error) error {
	switch records.ClassOf(err) {
	case records.ClassNotFound:
		return fail(codes.ImageNotFound, "%s: %w", doing, err)
	case records.ClassConflict:
		return fail(codes.ImageInUse, "%s: %w", doing, err)
	case records.ClassInvalid:
		return fail(codes.InvalidField, "%s: %w", doing, err)
	case records.ClassUnavailable:
		if contextError(ctx) == nil {
			return fail(codes.ImagePull, "%s: %w", doing, err)
		}
	default:
	}
	return storeError(ctx, doing, err)
}

func publicImages(images []Image) []*errandv1.Image {
	shown := make([]*errandv1.Image, 0, len(images))
	for _, image := range images {
		made := &errandv1.Image{Name: image.Name, Digest: image.Digest, SizeBytes: image.SizeBytes}
		if !image.ImportedAt.IsZero() {
			made.ImportedAt = timeOf(image.ImportedAt.UnixMilli())
		}
		if !image.PulledAt.IsZero() {
			made.PulledAt = timeOf(image.PulledAt.UnixMilli())
		}
		if !image.UsedAt.IsZero() {
			made.UsedAt = timeOf(image.UsedAt.UnixMilli())
		}
		shown = append(shown, made)
	}
	return shown
}

// archive is an upload as a reader. It holds one message at a time.
type archive struct {
	stream *connect.ClientStream[errandv1.ImportImageRequest]
	name   string
	rest   []byte
	left   int64
	// err is what ended the upload before its end.
	err error
}

// receive takes the next message; false is the end of the upload or of its luck.
func (a *archive) receive() bool {
	if a.err != nil {
		return false
	}
	if !a.stream.Receive() {
		a.err = uploadError(a.stream.Err())
		return false
	}
	message := a.stream.Msg()
	if a.name == "" {
		a.name = message.GetName()
	}
	a.rest = message.GetData()
	if a.left -= int64(len(a.rest)); a.left < 0 {
		a.err = fail(codes.ImageTooLarge, "the archive is larger than %d bytes", int64(importBytesMax))
		return false
	}
	return true
}

// Read implements io.Reader.
func (a *archive) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		if !a.receive() {
			if a.err != nil {
				return 0, a.err
			}
			return 0, io.EOF
		}
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

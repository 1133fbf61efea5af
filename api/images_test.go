package api_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/errand-run/errand/api"
	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// shelf keeps images in memory.
type shelf struct {
	name string
	data []byte
	err  error

	credential *errandv1.RegistryCredential
}

func (s *shelf) Import(_ context.Context, name string, archive io.Reader) ([]api.Image, error) {
	var err error
	s.name = name
	if s.data, err = io.ReadAll(archive); err != nil {
		return nil, err
	}
	return []api.Image{{Name: "docker.io/library/x:latest", Digest: "sha256:1", SizeBytes: int64(len(s.data)), ImportedAt: time.UnixMilli(1000)}}, s.err
}

func (s *shelf) Pull(_ context.Context, name string, credential *errandv1.RegistryCredential, progress func(*errandv1.ImagePull)) (api.Image, error) {
	s.name, s.credential = name, credential
	progress(&errandv1.ImagePull{Reference: name, Phase: errandv1.PullPhase_PULL_PHASE_FETCHING, Bytes: 1, TotalBytes: 2})
	return api.Image{Name: name, Digest: "sha256:2", PulledAt: time.UnixMilli(2000)}, s.err
}

func (s *shelf) Remove(_ context.Context, name string) (string, error) {
	return "docker.io/library/" + name, s.err
}

func (s *shelf) List(context.Context) ([]api.Image, error) { return nil, s.err }

func TestImages(t *testing.T) {
	stored := &shelf{}
	r := newRig(t, func(config *api.Config) { config.Images = stored })
	upload := func(pieces ...*errandv1.ImportImageRequest) (*errandv1.ImportImageResponse, error) {
		t.Helper()
		stream, err := r.images.Import(r.ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, piece := range pieces {
			if err := stream.Send(piece); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}
		return stream.CloseAndReceive()
	}
	t.Run("are the bytes of all messages in order", func(t *testing.T) {
		piece := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		response, err := upload(&errandv1.ImportImageRequest{Name: "x"}, &errandv1.ImportImageRequest{Data: piece}, &errandv1.ImportImageRequest{}, &errandv1.ImportImageRequest{Data: []byte("end")})
		if err != nil || stored.name != "x" || !bytes.Equal(stored.data, append(piece, "end"...)) {
			t.Fatalf("got %v, %v", response, err)
		}
		if got := response.GetImages()[0]; got.GetSizeBytes() != int64(len(piece)+3) || got.GetImportedAt().AsTime().UnixMilli() != 1000 {
			t.Errorf("image %v", got)
		}
	})
	t.Run("under a bad name are refused", func(t *testing.T) {
		_, err := upload(&errandv1.ImportImageRequest{Name: "Not A Name"})
		wantCode(t, err, codes.InvalidField)
	})
	t.Run("in a message that is too large are refused", func(t *testing.T) {
		_, err := upload(&errandv1.ImportImageRequest{Data: make([]byte, 3<<20)})
		wantCode(t, err, codes.RequestTooLarge)
	})
	t.Run("that are none say so", func(t *testing.T) {
		stored.err = records.Errorf(records.ClassInvalid, "unexpected EOF")
		_, err := upload(&errandv1.ImportImageRequest{Data: []byte("x")})
		wantCode(t, err, codes.ImageInvalid)
	})
	t.Run("are not there without containerd", func(t *testing.T) {
		r := newRig(t)
		_, err := r.images.List(r.ctx, &errandv1.ListImagesRequest{})
		wantCode(t, err, codes.NoImages)
		stream, err := r.images.Import(r.ctx)
		if err != nil {
			t.Fatal(err)
		}
		_, err = stream.CloseAndReceive()
		wantCode(t, err, codes.NoImages)
	})
}

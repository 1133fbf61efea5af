package client

import (
	"context"
	"errors"
	"io"

	"github.com/errand-run/errand/api/codes"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// Nodes returns the machines of the cluster.
func (c *Client) Nodes(ctx context.Context) ([]*errandv1.Node, error) {
	response, err := call(ctx, c, "list nodes", c.services.Nodes.List, &errandv1.ListNodesRequest{})
	return response.GetNodes(), err
}

// Node returns one machine with what it keeps in quarantine, and the pulls that are under
// way if it is the one that answers.
func (c *Client) Node(ctx context.Context, id string) (*errandv1.GetNodeResponse, error) {
	return call(ctx, c, "get node "+id, c.services.Nodes.Get, &errandv1.GetNodeRequest{Id: id})
}

// CheckNode has the node that the client reaches look for what is left on its machine
// that no run accounts for; id, unless empty, has to be its own. It takes some seconds
// where there is something.
func (c *Client) CheckNode(ctx context.Context, id string) (*errandv1.CheckNodeResponse, error) {
	return call(ctx, c, "check node "+id, c.services.Nodes.Check, &errandv1.CheckNodeRequest{Id: id})
}

// RemoveNode gives the caller's word, by whom it may say, that a node's machine is dead
// for good, and returns what was lost by it. Without dead nothing is done, and the answer
// is what would be. It may be repeated.
func (c *Client) RemoveNode(ctx context.Context, id string, dead bool, by string) (*errandv1.RemoveNodeResponse, error) {
	return call(ctx, c, "remove node "+id, c.services.Nodes.Remove, &errandv1.RemoveNodeRequest{Id: id, Dead: dead, By: by})
}

// Images returns the images that the node holds.
func (c *Client) Images(ctx context.Context) ([]*errandv1.Image, error) {
	response, err := call(ctx, c, "list images", c.services.Images.List, &errandv1.ListImagesRequest{})
	return response.GetImages(), err
}

// PullImage has the node fetch an image from its registry, and tells how far it has come
// meanwhile. credential, unless nil, is used in place of what the node has for the
// registry. The call is made once: asked for again, a pull goes on where it stopped.
func (c *Client) PullImage(
	ctx context.Context, name string, credential *errandv1.RegistryCredential, progress func(*errandv1.ImagePull),
) (*errandv1.Image, error) {
	const op = "pull image"
	heed := c.attend(ctx)
	defer heed.end()
	stream, err := c.services.Images.Pull(heed.ctx, &errandv1.PullImageRequest{Name: name, Credential: credential})
	if err != nil {
		return nil, c.pullFailure(ctx, op, heed.why(err))
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		c.reached.Store(true)
		c.hearing.note()
		if image := stream.Msg().GetImage(); image != nil {
			return image, nil
		}
		progress(stream.Msg().GetProgress())
	}
	err = stream.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return nil, c.pullFailure(ctx, op, heed.why(err))
}

func (c *Client) pullFailure(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return ended(ctx, op, err)
	}
	return c.failure(op, err)
}

// RemoveImage takes an image's name away and returns it as the node writes it.
func (c *Client) RemoveImage(ctx context.Context, name string) (string, error) {
	response, err := call(ctx, c, "remove image", c.services.Images.Remove, &errandv1.RemoveImageRequest{Name: name})
	return response.GetName(), err
}

// archiveChunk is the most that one message of an import carries, in bytes.
const archiveChunk = 1 << 20

// ImportImage sends a docker or OCI archive to the node and returns the images that it
// held. name, unless empty, is for an archive of one image and replaces its own. The
// call is made once: an archive can not be read again.
func (c *Client) ImportImage(ctx context.Context, name string, archive io.Reader) ([]*errandv1.Image, error) {
	const op = "import image"
	heed := c.attend(ctx)
	defer heed.end()
	response, err := c.sendArchive(heed.ctx, name, archive)
	err = heed.why(err)
	var failed *Error
	switch {
	case err == nil:
		c.reached.Store(true)
		return response.GetImages(), nil
	case errors.As(err, &failed):
		failed.Op = op
		return nil, failed
	case ctx.Err() != nil:
		return nil, ended(ctx, op, err)
	default:
		return nil, c.failure(op, err)
	}
}

// sendArchive streams the archive. When the node ends the stream early, its answer
// says why.
func (c *Client) sendArchive(ctx context.Context, name string, archive io.Reader) (*errandv1.ImportImageResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.services.Images.Import(ctx)
	if err != nil {
		return nil, err
	}
	// A request that is given up stays under way, with its connection, until its end is
	// written: the node does not take a part for the whole, since it is canceled first.
	giveUp := func() {
		cancel()
		_, _ = stream.CloseAndReceive()
	}
	buffer := make([]byte, archiveChunk)
	for first := true; ; first = false {
		n, readErr := io.ReadFull(archive, buffer)
		if readErr != nil && !errors.Is(readErr, io.EOF) && !errors.Is(readErr, io.ErrUnexpectedEOF) {
			giveUp()
			return nil, &Error{Code: codes.Archive, Message: readErr.Error(), cause: readErr}
		}
		if n > 0 || first {
			request := &errandv1.ImportImageRequest{Data: buffer[:n]}
			if first {
				request.Name = name
			}
			if err := stream.Send(request); err != nil {
				if errors.Is(err, io.EOF) {
					break
				}
				giveUp()
				return nil, err
			}
		}
		if readErr != nil {
			break
		}
	}
	return stream.CloseAndReceive()
}

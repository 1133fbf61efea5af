package registrytest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Push stores an image in a real registry that speaks plain HTTP.
func Push(ctx context.Context, host, repository, tag string, image v1.Image) error {
	base := "http://" + host + "/v2/" + repository
	served := &Registry{Host: host, content: map[string]content{}}
	if _, err := served.Add(repository, tag, image); err != nil {
		return err
	}
	var manifest content
	for path, blob := range served.content { //errand:unordered a manifest comes after all blobs
		if path == "/v2/"+repository+"/manifests/"+tag {
			manifest = blob
			continue
		}
		if path == "/v2/"+repository+"/manifests/"+blob.digest {
			continue
		}
		if err := pushBlob(ctx, base, blob); err != nil {
			return err
		}
	}
	_, err := send(ctx, http.MethodPut, base+"/manifests/"+tag, manifest.mediaType, manifest.data)
	return err
}

func pushBlob(ctx context.Context, base string, blob content) error {
	answer, err := send(ctx, http.MethodPost, base+"/blobs/uploads/", "", nil)
	if err != nil {
		return err
	}
	to, err := answer.Location()
	if err != nil {
		return fmt.Errorf("push a blob: %w", err)
	}
	query := to.Query()
	query.Set("digest", blob.digest)
	to.RawQuery = query.Encode()
	_, err = send(ctx, http.MethodPut, to.String(), "application/octet-stream", blob.data)
	return err
}

func send(ctx context.Context, method, to, mediaType string, data []byte) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, to, bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("push: %w", err)
	}
	if mediaType != "" {
		request.Header.Set("Content-Type", mediaType)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("push: %w", err)
	}
	words, _ := io.ReadAll(io.LimitReader(answer.Body, 4<<10))
	_ = answer.Body.Close() // it was read
	if answer.StatusCode > 299 {
		return nil, fmt.Errorf("push: %s %s: %s %s", method, to, answer.Status, words)
	}
	return answer, nil
}

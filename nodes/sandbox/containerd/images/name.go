package images

import (
	"errors"
	"fmt"

	"github.com/distribution/reference"
)

// NameBytesMax bounds an image's name as it is typed.
const NameBytesMax = 512

// ErrName is returned when a text can not be the name of an image.
var ErrName = errors.New("not an image name")

// Normalize returns an image's name in full, the way images are stored: "busybox"
// is docker.io/library/busybox:latest. A name with a digest keeps it, and loses its
// tag.
func Normalize(name string) (string, error) {
	if name == "" || len(name) > NameBytesMax {
		return "", fmt.Errorf("%w: it has 1 to %d characters", ErrName, NameBytesMax)
	}
	named, err := reference.ParseDockerRef(name)
	if err != nil {
		return "", fmt.Errorf("%w: %q", ErrName, name)
	}
	return named.String(), nil
}

// Package images keeps a node's images in containerd: it imports docker and OCI
// archives, lists what is there, and says what a sandbox needs to know of an image.
//
// An import happens under a lease of its own: the blobs go into the content store,
// the layers are unpacked for the snapshotter, and only then is the image's name
// written. What fails before that leaves nothing behind, and an image of the same
// name as it was.
package images

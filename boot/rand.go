package boot

import (
	"crypto/rand"
	"encoding/binary"
)

// systemRand draws from the kernel's cryptographic source. It implements
// actors.Rand and may be used by many goroutines.
type systemRand struct{}

// Uint64 draws a number.
func (r systemRand) Uint64() uint64 {
	var b [8]byte
	r.Fill(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// Fill fills the bytes. The kernel's source does not fail once it is seeded.
func (systemRand) Fill(b []byte) {
	if _, err := rand.Read(b); err != nil {
		panic("boot: the kernel's random source: " + err.Error())
	}
}

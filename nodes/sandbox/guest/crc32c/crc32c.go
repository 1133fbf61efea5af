// Package crc32c is the checksum CRC-32C for processes that live for milliseconds:
// hash/crc32 takes as long to make its tables as such a process takes to start.
package crc32c

import (
	"hash/crc32"
	"sync"
)

// short is up to what length a sum is taken bit by bit, without a table.
const short = 256

var table = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

// Sum returns the checksum of b.
func Sum(b []byte) uint32 { return Update(0, b) }

// Update returns the checksum of what sum stands for with b after it.
func Update(sum uint32, b []byte) uint32 {
	if len(b) > short {
		return crc32.Update(sum, table(), b)
	}
	const reversed = 0x82f63b78
	sum = ^sum
	for _, c := range b {
		sum ^= uint32(c)
		for range 8 {
			sum = sum>>1 ^ reversed&-(sum&1)
		}
	}
	return ^sum
}

package testenv

import (
	"encoding/hex"
	"math/rand/v2"
	"sync"
)

// ids draws every identifier the stand-in hands out from one seeded generator, so
// that the same seed and the same calls give the same bytes. It is safe for
// concurrent use; concurrent callers share one sequence in the order they arrive.
type ids struct {
	mu  sync.Mutex
	rng *rand.PCG
}

func newIDs(seed uint64) *ids {
	return &ids{rng: rand.NewPCG(seed, 0x9e3779b97f4a7c15)}
}

// restart begins the sequence that belongs to the nth time of opening, so that none of
// them repeats what an earlier one handed out.
func (g *ids) restart(seed, n uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n > 1 {
		seed = mix(seed ^ mix(n))
	}
	g.rng = rand.NewPCG(seed, 0x9e3779b97f4a7c15)
}

// uuid returns a random (version 4) UUID in its 36 character form.
func (g *ids) uuid() string {
	var b [16]byte
	g.fill(b[:])
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	var out [36]byte
	hex.Encode(out[0:8], b[0:4])
	hex.Encode(out[9:13], b[4:6])
	hex.Encode(out[14:18], b[6:8])
	hex.Encode(out[19:23], b[8:10])
	hex.Encode(out[24:36], b[10:16])
	out[8], out[13], out[18], out[23] = '-', '-', '-', '-'
	return string(out[:])
}

// hex returns n lower-case hexadecimal digits.
func (g *ids) hex(n int) string {
	b := make([]byte, (n+1)/2)
	g.fill(b)
	return hex.EncodeToString(b)[:n]
}

// requestID returns an id for one response in the form DynamoDB and Firehose use: 52
// characters of A to Z and 0 to 9.
func (g *ids) requestID() string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	var b [52]byte
	g.fill(b[:])
	for i, c := range b {
		b[i] = alphabet[int(c)%len(alphabet)]
	}
	return string(b[:])
}

func (g *ids) fill(b []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(b) > 0 {
		v := g.rng.Uint64()
		for i := 0; i < 8 && len(b) > 0; i++ {
			b[0] = byte(v)
			v >>= 8
			b = b[1:]
		}
	}
}

// mix is the finalizer of splitmix64: a cheap bijection that spreads its input over
// all 64 bits.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

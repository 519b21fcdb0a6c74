package pipeline

import (
	"bytes"
	"cmp"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
)

// PartSize bounds a part. The zero value of a field means its default.
type PartSize struct {
	Aim   int // bytes to aim for; default 900 KiB
	Limit int // bytes never to exceed; default 1,000 KiB, the size of a Firehose record (API model, shape Data)
	Rows  int // rows never to exceed; default none
}

// A cutter encodes rows as parts. What it remembers of earlier windows only speeds up the
// search for the cut; where the cut fell is in the manifest.
type cutter struct {
	enc         Encoder
	size        PartSize
	bytesPerRow map[string]float64 // by table, of the last part
}

func newCutter(enc Encoder, s PartSize) cutter {
	s.Aim = cmp.Or(s.Aim, 900<<10)
	s.Limit = cmp.Or(s.Limit, 1000<<10)
	return cutter{enc: enc, size: s, bytesPerRow: map[string]float64{}}
}

// bySize cuts the rows of each group into parts of about the aim and lists them in m.
func (c *cutter) bySize(m *Manifest, rows *Rows) ([]Part, error) {
	var parts []Part
	for i, g := range rows.Groups {
		for off := 0; off < int(g.Rows.NumRows()); {
			p, err := c.one(m, rest{g, off, len(parts), i == len(rows.Groups)-1})
			if err != nil {
				return nil, err
			}
			m.Parts = append(m.Parts, PartSpec{g.Table, g.Partition, p.Rows})
			parts = append(parts, p)
			off += p.Rows
		}
	}
	return parts, nil
}

// maxTries is how often rows are encoded to find a full part of them, if some fit. Mostly the
// first or second try is one.
const maxTries = 8

// A rest is what is left to be cut: a group's rows from off, for part number index.
type rest struct {
	g          Group
	off, index int
	final      bool // no group follows
}

func (r rest) len() int { return int(r.g.Rows.NumRows()) - r.off }

// one encodes the next part. It tries numbers of rows between the most that are known to fit and
// the least that are known not to, until the part is nearly as large as the aim.
func (c *cutter) one(m *Manifest, r rest) (Part, error) {
	left, g := r.len(), r.g
	if c.size.Rows > 0 {
		left = min(left, c.size.Rows)
	}
	aim := float64(c.size.Aim)
	k := clamp(int(aim/cmp.Or(c.bytesPerRow[g.Table], 32)), left)
	var best Part
	over := left + 1
	for try := 1; ; try++ {
		p, err := c.encode(m, r, k)
		if err != nil {
			return p, err
		}
		size := float64(len(p.Body))
		switch {
		case len(p.Body) <= c.size.Limit:
			best = p
		case k == 1:
			return p, nil // one row over the limit: the sink puts it straight into staging
		default:
			over = k
		}
		full := float64(len(best.Body)) >= aim*0.85
		if best.Rows > 0 && (full || best.Rows+1 >= over || try >= maxTries) {
			c.bytesPerRow[g.Table] = float64(len(best.Body)) / float64(best.Rows)
			return best, nil
		}
		// Rows are not all of one size: where the guess is known to be wrong, take the middle.
		k = clamp(int(float64(k)*aim/size*0.97), left)
		if k <= best.Rows || k >= over || best.Rows == 0 && try >= 3 {
			k = best.Rows + (over-best.Rows)/2
		}
	}
}

// byManifest cuts the rows as m says.
func (c *cutter) byManifest(m *Manifest, rows *Rows) ([]Part, error) {
	var parts []Part
	mismatch := func(g Group, what string) error {
		return NeedPerson(fmt.Errorf("replayed rows of %s/%s differ from the manifest: %s", g.Table, g.Partition, what),
			"do not restart; report the window and the stream's records between its first and last number")
	}
	for j, g := range rows.Groups {
		n := int(g.Rows.NumRows())
		for off := 0; off < n; {
			i := len(parts)
			if i >= len(m.Parts) || m.Parts[i].Table != g.Table || m.Parts[i].Partition != g.Partition {
				return nil, mismatch(g, fmt.Sprintf("rows beyond %d are in no part", off))
			}
			k := m.Parts[i].Rows
			if k < 1 || off+k > n {
				return nil, mismatch(g, fmt.Sprintf("part %d has %d rows, %d are left", i, k, n-off))
			}
			p, err := c.encode(m, rest{g, off, i, j == len(rows.Groups)-1}, k)
			if err != nil {
				return nil, err
			}
			parts = append(parts, p)
			off += k
		}
	}
	if len(parts) != len(m.Parts) {
		s := m.Parts[len(parts)]
		return nil, mismatch(Group{Table: s.Table, Partition: s.Partition}, "its rows are missing")
	}
	return parts, nil
}

// encode makes a part of the next k rows.
func (c *cutter) encode(m *Manifest, r rest, k int) (Part, error) {
	g := r.g
	meta := PartMeta{
		Format: FormatVersion, Window: m.Window, Part: r.index, Stream: m.Stream, Contract: m.Contract,
		Table: g.Table, Partition: g.Partition, Rows: k, Order: g.Order, Ranges: m.Ranges(),
		Last: r.final && k == r.len(),
	}
	text, err := meta.Encode()
	if err != nil {
		return Part{}, err
	}
	footer := map[string]string{PartMetaKey: text}
	if m.Lake != "" {
		if footer[ObjectMetaKey], err = meta.Object().Encode(); err != nil {
			return Part{}, err
		}
	}
	var rows arrow.RecordBatch = g.Rows.NewSlice(int64(r.off), int64(r.off+k))
	defer rows.Release()
	var buf bytes.Buffer
	if err := c.enc.Encode(&buf, rows, footer); err != nil {
		return Part{}, fmt.Errorf("encode part %s: %w", meta.ID(), err)
	}
	return Part{ID: meta.ID(), Table: g.Table, Partition: g.Partition, Rows: k, Body: buf.Bytes()}, nil
}

func clamp(k, most int) int { return max(1, min(k, most)) }

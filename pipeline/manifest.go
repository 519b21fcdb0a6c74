package pipeline

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// FormatVersion is the version of every stored form here: manifest, part metadata, object
// metadata. A binary that meets a newer one leaves the thing alone and says so.
const FormatVersion = 1

// LayoutVersion is the version of the window function: how records are sorted and where
// partitions lie. A successor replays a pending window only under the version it was begun with.
const LayoutVersion = 1

// A LaneID names a lane: lower-case letters, digits, '_', '-' and '.'.
type LaneID string

// Valid reports whether l can stand in item keys and object names.
func (l LaneID) Valid() bool {
	return l != "" && strings.Trim(string(l), "abcdefghijklmnopqrstuvwxyz0123456789_-.") == "" && len(l) <= 128
}

// A WindowID names a window. Windows of one lane and incarnation are numbered from 1.
type WindowID struct {
	Lane        LaneID `json:"lane"`
	Incarnation string `json:"inc"`
	N           int64  `json:"n"`
}

// String returns lane/incarnation/n.
func (w WindowID) String() string {
	return string(w.Lane) + "/" + w.Incarnation + "/" + strconv.FormatInt(w.N, 10)
}

// A PartID names a part: the window and its index in the manifest, from 0.
type PartID struct {
	Window WindowID
	Index  int
}

// String returns lane/incarnation/n/index.
func (p PartID) String() string { return p.Window.String() + "/" + strconv.Itoa(p.Index) }

// A Range is what a window took of one shard.
type Range struct {
	Shard ShardID        `json:"shard"`
	First SequenceNumber `json:"first,omitempty"` // "" if no record was read, only the end
	Last  SequenceNumber `json:"last,omitempty"`
	End   bool           `json:"end,omitempty"` // the shard is finished with this window
}

// Counts says what became of the records of one shard. Removals by TTL are in no count,
// because a filter in front of us may have taken them out; those of which a contract makes
// tombstones are counted as such, and must not be filtered.
type Counts struct {
	Rows        int `json:"rows,omitempty"`
	Changes     int `json:"changes,omitempty"`
	Tombstones  int `json:"tombstones,omitempty"`
	Quarantined int `json:"quarantined,omitempty"`
	Ignored     int `json:"ignored,omitempty"` // refused by the contract
}

// Add adds d to c.
func (c *Counts) Add(d Counts) {
	c.Rows += d.Rows
	c.Changes += d.Changes
	c.Tombstones += d.Tombstones
	c.Quarantined += d.Quarantined
	c.Ignored += d.Ignored
}

// A PartSpec is what a manifest says of one part.
type PartSpec struct {
	Table     string `json:"table"`
	Partition string `json:"partition"`
	Rows      int    `json:"rows"`
}

// A ShardRange is a manifest's word on one shard: the range and its outcomes.
type ShardRange struct {
	Range
	Counts Counts `json:"counts"`
	// After is the position the shard had when the window was gathered; begin checks it.
	After SequenceNumber `json:"after,omitempty"`
	// Missing says that records between After and First aged out; begin opens their gap.
	Missing *Missing `json:"missing,omitempty"`
	// Oldest and Newest are the lowest and the highest creation time of its records: what bounds a
	// search for them once the stream has dropped them. Zero if it has none, or in a manifest of a
	// binary that did not write them.
	Oldest time.Time `json:"oldest,omitzero"`
	Newest time.Time `json:"newest,omitzero"`
}

// Position is the shard's position once the window is committed. A window that took nothing
// but the end leaves the number as it was.
func (s ShardRange) Position() Position {
	return Position{Seq: cmp.Or(s.Last, s.After), End: s.End, Created: s.Newest}
}

// A Manifest is the stored description of a window, from which anyone can make its parts again.
type Manifest struct {
	Format   int          `json:"format"`
	Layout   int          `json:"layout"`
	Window   WindowID     `json:"window"`
	Stream   string       `json:"stream"`   // ARN
	Contract string       `json:"contract"` // hash
	Shards   []ShardRange `json:"shards"`   // by shard id
	Parts    []PartSpec   `json:"parts"`    // in total order
	// Lake names the lake of which the parts are objects at once, s3://bucket/prefix/ or dir:/path.
	// Empty: they go to staging, and seal makes lake objects of them. Whoever lands the window again
	// must do it the same way, or it would be in the lake by both.
	Lake string `json:"lake,omitempty"`
	// Rebuilt says that it was told from what was found of the window: its counts are not known, and
	// a part that was not found has no table, so that any part of that number is it. Such a window
	// cannot be landed again.
	Rebuilt bool `json:"rebuilt,omitempty"`
}

// Limits of one window, so that begin and commit fit one DynamoDB transaction of 100 items
// and the manifest one item of 400 KB. A gap is an item of begin's transaction as a shard is, so
// that both together must not be more.
const (
	MaxShardsPerWindow = 90
	MaxManifestBytes   = 300_000
)

// Counts sums the outcomes of all shards.
func (m *Manifest) Counts() Counts {
	var c Counts
	for _, s := range m.Shards {
		c.Add(s.Counts)
	}
	return c
}

// Ranges returns the window's ranges without their counts.
func (m *Manifest) Ranges() []Range {
	rs := make([]Range, len(m.Shards))
	for i, s := range m.Shards {
		rs[i] = s.Range
	}
	return rs
}

// Encode returns the stored form.
func (m *Manifest) Encode() ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode manifest of window %s: %w", m.Window, err)
	}
	return b, nil
}

// DecodeManifest reads the stored form. A newer format is ErrNewerFormat.
func DecodeManifest(b []byte) (*Manifest, error) {
	var m Manifest
	if err := decodeVersioned(b, &m); err != nil {
		return nil, fmt.Errorf("decode manifest: %w", err)
	}
	if m.Layout > LayoutVersion {
		return nil, fmt.Errorf("decode manifest of window %s: layout %d: %w", m.Window, m.Layout, ErrNewerFormat)
	}
	return &m, nil
}

// Keys of the metadata in Parquet footers.
const (
	PartMetaKey   = "telemetrylake.part"   // of a part
	ObjectMetaKey = "telemetrylake.object" // of a sealed object
)

// PartMeta is what a part says of itself in its footer.
type PartMeta struct {
	Format    int      `json:"format"`
	Window    WindowID `json:"window"`
	Part      int      `json:"part"`
	Stream    string   `json:"stream"`
	Contract  string   `json:"contract"`
	Table     string   `json:"table"`
	Partition string   `json:"partition"`
	Rows      int      `json:"rows"`
	Order     []string `json:"order"` // columns its rows are sorted by, before shard and sequence number
	Ranges    []Range  `json:"ranges"`
	Last      bool     `json:"last,omitempty"`  // no part of the window follows it: the window has Part+1
	Probe     bool     `json:"probe,omitempty"` // written to test a sink; seal drops it
}

// ID returns the part's id.
func (p *PartMeta) ID() PartID { return PartID{p.Window, p.Part} }

// Encode returns the footer's form.
func (p *PartMeta) Encode() (string, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return "", fmt.Errorf("encode metadata of part %s: %w", p.ID(), err)
	}
	return string(b), nil
}

// DecodePartMeta reads the footer's form. A newer format is ErrNewerFormat.
func DecodePartMeta(s string) (*PartMeta, error) {
	var p PartMeta
	if err := decodeVersioned([]byte(s), &p); err != nil {
		return nil, fmt.Errorf("decode part metadata: %w", err)
	}
	if !p.Probe && (!p.Window.Lane.Valid() || p.Window.N < 1 || p.Part < 0 || p.Table == "") {
		return nil, fmt.Errorf("decode part metadata: incomplete: window %s part %d table %q", p.Window, p.Part, p.Table)
	}
	return &p, nil
}

// Matches reports how p differs from what the window's manifest says of that part; nil if it
// does not. A part is never taken for a duplicate, nor published, by its number alone.
func (p *PartMeta) Matches(m *Manifest) error {
	if m.Lake != "" {
		return fmt.Errorf("part %s lies in staging, and its window's parts are objects of %s at once", p.ID(), m.Lake)
	}
	if p.Part >= len(m.Parts) {
		return fmt.Errorf("part %s: the manifest has %d parts", p.ID(), len(m.Parts))
	}
	want := m.Parts[p.Part]
	if got := (PartSpec{p.Table, p.Partition, p.Rows}); got != want && !(m.Rebuilt && want.Table == "") {
		return fmt.Errorf("part %s holds %d rows of %s/%s, the manifest says %d of %s/%s",
			p.ID(), got.Rows, got.Table, got.Partition, want.Rows, want.Table, want.Partition)
	}
	if p.Contract != m.Contract {
		return fmt.Errorf("part %s is of contract %s, the manifest says %s", p.ID(), p.Contract, m.Contract)
	}
	if p.Stream != m.Stream || !slices.Equal(p.Ranges, m.Ranges()) {
		return fmt.Errorf("part %s: its ranges %v of %s are not the manifest's %v of %s", p.ID(), p.Ranges, p.Stream, m.Ranges(), m.Stream)
	}
	return nil
}

// An ObjectMeta is what a sealed object says of itself in its footer: it has the last word
// on which parts were published under its name.
type ObjectMeta struct {
	Format    int            `json:"format"`
	Table     string         `json:"table"`
	Partition string         `json:"partition"`
	Rows      int            `json:"rows"`
	Staging   string         `json:"staging"` // key of the staging object
	ETag      string         `json:"etag"`
	Round     int            `json:"round"`
	Windows   []ObjectWindow `json:"windows"`
}

// An ObjectWindow lists the parts of one window that an object holds. The ranges are there
// so that positions can be rebuilt from the lake alone.
type ObjectWindow struct {
	Window   WindowID `json:"window"`
	Stream   string   `json:"stream"`
	Contract string   `json:"contract"`
	Ranges   []Range  `json:"ranges"`
	// PartsTotal is how many parts the window has, in this object and elsewhere; 0 if it was not
	// written down. It tells whether a window is whole in the lake.
	PartsTotal int          `json:"parts_total,omitempty"`
	Parts      []ObjectPart `json:"parts"`
}

// An ObjectPart is one part inside a sealed object.
type ObjectPart struct {
	Part int `json:"part"`
	Rows int `json:"rows"`
}

// Encode returns the footer's form.
func (o *ObjectMeta) Encode() (string, error) {
	b, err := json.Marshal(o)
	if err != nil {
		return "", fmt.Errorf("encode metadata of object: %w", err)
	}
	return string(b), nil
}

// DecodeObjectMeta reads the footer's form. A newer format is ErrNewerFormat.
func DecodeObjectMeta(s string) (*ObjectMeta, error) {
	var o ObjectMeta
	if err := decodeVersioned([]byte(s), &o); err != nil {
		return nil, fmt.Errorf("decode object metadata: %w", err)
	}
	return &o, nil
}

// PartIDs lists the parts the object holds.
func (o *ObjectMeta) PartIDs() []PartID {
	var ids []PartID
	for _, w := range o.Windows {
		for _, p := range w.Parts {
			ids = append(ids, PartID{w.Window, p.Part})
		}
	}
	return ids
}

// ErrNewerFormat means that a newer binary wrote the thing. Leave it and upgrade.
var ErrNewerFormat = errors.New("written by a newer version of streamer: upgrade this one")

// decodeVersioned reads the format before the rest, since a newer format may not decode at all.
func decodeVersioned(b []byte, v any) error {
	var f struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	if f.Format > FormatVersion {
		return fmt.Errorf("format %d: %w", f.Format, ErrNewerFormat)
	}
	if f.Format < 1 {
		return errors.New("no format version")
	}
	return json.Unmarshal(b, v)
}

// ParseWindowID reads what WindowID's String wrote.
func ParseWindowID(s string) (WindowID, error) {
	f := strings.Split(s, "/")
	if len(f) != 3 {
		return WindowID{}, fmt.Errorf("parse window %q: it is not lane/incarnation/n", s)
	}
	n, err := strconv.ParseInt(f[2], 10, 64)
	if err != nil || n < 1 || f[1] == "" || !LaneID(f[0]).Valid() {
		return WindowID{}, fmt.Errorf("parse window %q: it is not lane/incarnation/n", s)
	}
	return WindowID{LaneID(f[0]), f[1], n}, nil
}

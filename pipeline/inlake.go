package pipeline

import (
	"context"
	"fmt"
)

// Where parts are objects of the lake at once, and no seal joins them, the object is the claim: its
// name is a function of window and part, and it is created once.

// ObjectName is the name of part i in the lake of m.Lake: table/partition/, then what no other part
// of any window has. It begins with a letter, since readers skip files that begin with a dot or a
// score, and a lane's name may.
func (m *Manifest) ObjectName(i int) (string, error) {
	if i < 0 || i >= len(m.Parts) {
		return "", fmt.Errorf("window %s has no part %d, only %d", m.Window, i, len(m.Parts))
	}
	p := m.Parts[i]
	if p.Table == "" {
		return "", fmt.Errorf("part %d of window %s: its table is not known", i, m.Window)
	}
	return objectName(p.Table, p.Partition, PartID{m.Window, i}), nil
}

// ObjectName is the name of the part where it is an object of the lake at once.
func (p *Part) ObjectName() string { return objectName(p.Table, p.Partition, p.ID) }

func objectName(table, partition string, id PartID) string {
	w := id.Window
	return fmt.Sprintf("%s/%s/w-%s-%s-%012d-%06d.parquet", table, partition, w.Lane, w.Incarnation, w.N, id.Index)
}

// Object is what the part says of itself where it is an object of the lake at once: as of an object
// that was sealed of it alone, without a staging object.
func (p *PartMeta) Object() *ObjectMeta {
	w := ObjectWindow{
		Window: p.Window, Stream: p.Stream, Contract: p.Contract, Ranges: p.Ranges,
		Parts: []ObjectPart{{Part: p.Part, Rows: p.Rows}},
	}
	if p.Last {
		w.PartsTotal = p.Part + 1
	}
	return &ObjectMeta{Format: FormatVersion, Table: p.Table, Partition: p.Partition, Rows: p.Rows, Windows: []ObjectWindow{w}}
}

// An Occupant is what lies under the name of a part.
type Occupant int

// Occupants.
const (
	Stranger Occupant = iota // something else: nothing of ours goes there, a person must look
	Landed                   // the part
	Voided                   // an object without rows: the part was given up, and never will be in the lake
)

// Occupies says what an object under the name of part id, of so many rows, is by its footer; a nil o
// has none of ours.
func (o *ObjectMeta) Occupies(id PartID, rows int) Occupant {
	switch {
	case o == nil || o.Staging != "":
		return Stranger
	case o.Rows == 0 && len(o.Windows) == 0:
		return Voided
	case o.Rows == rows && len(o.Windows) == 1 && o.Windows[0].Window == id.Window &&
		len(o.Windows[0].Parts) == 1 && o.Windows[0].Parts[0] == ObjectPart{id.Index, rows}:
		return Landed
	}
	return Stranger
}

// ClaimOf is the claim on a part whose copy is the lake object itself.
func ClaimOf(id PartID, name string) Claim {
	return Claim{Part: id, Name: name, Copy: Copy{Key: name, ETag: inLake}}
}

// A Claimer is what PublishInLake needs of a ledger.
type Claimer interface {
	Claim(ctx context.Context, claims []Claim) ([]Claim, error)
	Publish(ctx context.Context, claims []Claim) error
}

// PublishInLake has a ledger hold parts that are in the lake, by the claims that ClaimOf makes. It
// fails with ErrWindowClosed if their window is sealed: then all were published, and these are the
// same.
func PublishInLake(ctx context.Context, l Claimer, claims []Claim) error {
	if len(claims) == 0 {
		return nil
	}
	held, err := l.Claim(ctx, claims)
	if err != nil {
		return fmt.Errorf("claim what is in the lake: %w", err)
	}
	var rest []Claim
	for i, c := range held {
		switch {
		case c.Void || c.Name != claims[i].Name:
			return NeedPerson(fmt.Errorf("part %s is in the lake as %s, and the ledger holds it under %q (void %v)", c.Part, claims[i].Name, c.Name, c.Void),
				"it was landed in two ways: find out what else lands this window, and report it")
		case !c.Published:
			rest = append(rest, c)
		}
	}
	if err := l.Publish(ctx, rest); err != nil {
		return fmt.Errorf("publish what is in the lake: %w", err)
	}
	return nil
}

// inLake stands for the ETag of a copy that is no staging object.
const inLake = "lake"

// otherWay refuses to land a pending window in another way than it was begun for.
func otherWay(m *Manifest, lake string) error {
	way := func(lake string) string {
		if lake == "" {
			return "staging"
		}
		return lake
	}
	return NeedPerson(fmt.Errorf("it was begun to be landed in %s, this lane lands in %s", way(m.Lake), way(lake)),
		"start once with the --land and --lake of before, which finishes it")
}

package hot

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/schemas"
)

// A Mapping says what of a file gives what of an item.
type Mapping struct {
	// Columns has, for a capture of a key pattern, an attribute (dots lead into maps) or a
	// column of the contract, the column or JSON member of the file that gives it.
	Columns map[string]string
	// Only leaves out every column that Columns does not name. Otherwise those that the
	// contract knows by their own name are loaded too, and if Columns is empty, also the
	// members of a JSON object that it does not know.
	Only bool
	// EpochUnit says how a number is counted that gives the event time. "" follows the
	// contract: its own encoding, or if that is ISO 8601, seconds below 1E11 and milliseconds
	// from there (March 1973; as seconds the year 5138).
	EpochUnit schemas.Encoding
}

// RoomClimateMapping reads the Room Climate Datasets (Morgner et al., ESORICS 2017).
func RoomClimateMapping() Mapping {
	return Mapping{
		Columns: map[string]string{
			deviceCapture: nodeColumn, schemas.CaptureEventTime: takenColumn, celsiusName: celsiusColumn, humidityName: humidityColumn,
		},
		Only:      true,
		EpochUnit: schemas.EpochMilli,
	}
}

// ExpiresFrom says what the retention of a loaded item counts from.
type ExpiresFrom string

// What retention counts from.
const (
	// ExpiresFromLoad replaces also what the file says: old readings must not be past their
	// time at once.
	ExpiresFromLoad ExpiresFrom = "load"
	// ExpiresFromEvent is for items whose file does not say when they expire.
	ExpiresFromEvent ExpiresFrom = "event"
)

// MapperOptions of a Mapper.
type MapperOptions struct {
	Mapping
	Expires ExpiresFrom // "": ExpiresFromLoad
	Now     time.Time   // when the load began
}

// A Mapper makes items of rows as a contract describes them: key attributes composed by
// their patterns, values of the contract's types with the file's text of numbers, the event
// time in the contract's encoding, and when the item expires. It serves one reader.
type Mapper struct {
	c        *schemas.Contract
	o        MapperOptions
	event    schemas.Column
	explicit map[string]string // the file's column → what it gives
	targets  map[string]target
	leftOut  map[string]bool
	ttl      *types.AttributeValueMemberN // nil: counted from the event
}

// NewMapper refuses a mapping to what the contract does not know.
func NewMapper(c *schemas.Contract, o MapperOptions) (*Mapper, error) {
	m := &Mapper{c: c, o: o, explicit: map[string]string{}, targets: map[string]target{}, leftOut: map[string]bool{}}
	var ok bool
	if m.event, ok = c.Column(c.EventTime); !ok {
		return nil, fmt.Errorf("contract %s has no column %s for the event time", c.Name, c.EventTime)
	}
	given := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(o.Columns)) {
		column := o.Columns[name]
		t := m.target(name)
		switch {
		case !t.known:
			return nil, fmt.Errorf("map %s=%s: contract %s knows no %s; write one of %s", name, column, c.Name, name, strings.Join(m.known(), ", "))
		case m.explicit[column] != "":
			return nil, fmt.Errorf("map %s=%s: the column gives %s already", name, column, m.explicit[column])
		case given[t.name] != "":
			return nil, fmt.Errorf("map %s=%s: it is the same as %s", name, column, given[t.name])
		}
		m.explicit[column], given[t.name] = name, name
	}
	if o.Expires != ExpiresFromEvent {
		m.ttl = number(o.Now.Add(c.Retention).Unix())
	}
	return m, nil
}

// LeftOut are the columns that were not loaded, in alphabetical order. It is for the time
// after the last row.
func (m *Mapper) LeftOut() []string { return slices.Sorted(maps.Keys(m.leftOut)) }

// known are the names that a mapping can give.
func (m *Mapper) known() []string {
	var names []string
	for _, key := range []schemas.Key{m.c.Keys.Partition, m.c.Keys.Sort} {
		names = append(names, key.Attribute)
		names = append(names, key.Pattern.Captures()...)
	}
	for _, col := range m.c.Columns {
		names = append(names, col.Attribute)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(s string) bool { return s == "" })
}

// A target is what a value of a file gives.
type target struct {
	name     string // one for each target
	known    bool   // to the contract
	capture  string // of a key pattern, "" for an attribute
	event    bool   // it is the event time
	branch   bool   // a map that the contract knows values in
	typ      *schemas.Type
	encoding schemas.Encoding
}

const eventTarget = "{" + schemas.CaptureEventTime + "}"

// target finds what a name means: a capture, an attribute, or a column of the contract.
func (m *Mapper) target(name string) target {
	t, ok := m.targets[name]
	if !ok {
		t = m.find(name)
		m.targets[name] = t
	}
	return t
}

func (m *Mapper) find(name string) target {
	if name == "" { // the header of a column of row numbers, often
		return target{}
	}
	if name == m.event.Name || name == m.event.Attribute || m.isEvent(name) {
		return target{name: eventTarget, known: true, event: true}
	}
	if _, ok := m.c.Keys.Key(name); ok {
		return target{name: "{" + name + "}", known: true, capture: name}
	}
	if t := m.attribute(name); t.known {
		return t
	}
	if col, ok := m.c.Column(name); ok {
		if col.Key != "" {
			return m.find(col.Key)
		}
		return m.attribute(col.Attribute)
	}
	return target{name: name}
}

// isEvent reports whether a capture of a key pattern is the event time.
func (m *Mapper) isEvent(capture string) bool {
	return capture == schemas.CaptureEventTime || capture == m.event.Key && capture != ""
}

func (m *Mapper) attribute(path string) target {
	t := target{name: path, known: true}
	for _, col := range m.c.Columns {
		if col.Attribute == path {
			t.typ, t.encoding = &col.Type, col.Encoding
			return t
		}
	}
	switch typ, _ := m.c.AttributeType(path); typ {
	case "S":
		t.typ = &schemas.Type{Kind: schemas.String}
		return t
	case "N":
		t.typ = &schemas.Type{Kind: schemas.Decimal}
		return t
	}
	for _, col := range m.c.Columns {
		if strings.HasPrefix(col.Attribute, path+".") {
			t.branch = true
			return t
		}
		if rest, ok := strings.CutPrefix(path, col.Attribute+"."); ok && col.Attribute != "" {
			if t.typ = inner(col.Type, rest); t.typ != nil {
				return t
			}
		}
	}
	return target{name: path}
}

// inner is the type of a value in a map or a struct; nil if there is none.
func inner(t schemas.Type, path string) *schemas.Type {
	name, rest, deeper := strings.Cut(path, ".")
	var found *schemas.Type
	switch t.Kind {
	case schemas.Map:
		found = t.Elem
	case schemas.Struct:
		for _, f := range t.Fields {
			if f.Name == name {
				found = &f.Type
			}
		}
	}
	if found == nil || !deeper {
		return found
	}
	return inner(*found, rest)
}

// A column is a column of a CSV file that is loaded.
type column struct {
	index int
	name  string
	target
}

// plan says what each column of a CSV file gives. It refuses a header that lacks what was
// mapped or what a key needs.
func (m *Mapper) plan(header []string) ([]column, error) {
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(m.explicit)) {
		if !slices.Contains(header, name) {
			missing = append(missing, fmt.Sprintf("%s, which is to give %s", name, m.explicit[name]))
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("the header lacks %s; it has %s", strings.Join(missing, ", and "), strings.Join(header, ", "))
	}
	var plan []column
	by := map[string]string{} // target → column
	for _, name := range m.explicit {
		by[m.target(m.explicit[name]).name] = name
	}
	for i, name := range header {
		t, use := m.use(name)
		// What a text without a type is, only the contract can say.
		if !use || !t.known {
			m.leftOut[name] = true
			continue
		}
		if first, twice := by[t.name]; twice && first != name {
			if m.explicit[first] != "" {
				m.leftOut[name] = true
				continue
			}
			return nil, fmt.Errorf("the columns %s and %s both give %s; map the one that is meant", first, name, t.name)
		}
		by[t.name] = name
		plan = append(plan, column{i, name, t})
	}
	return plan, m.checkKeys(by)
}

// use says what a column of the file gives, and whether it is to be loaded.
func (m *Mapper) use(name string) (target, bool) {
	if to, ok := m.explicit[name]; ok {
		return m.target(to), true
	}
	t := m.target(name)
	return t, !m.o.Only && (t.known || len(m.explicit) == 0)
}

// checkKeys refuses columns that no key can be made of.
func (m *Mapper) checkKeys(by map[string]string) error {
	_, timed := by[eventTarget]
	for _, key := range []schemas.Key{m.c.Keys.Partition, m.c.Keys.Sort} {
		_, given := by[key.Attribute]
		if given || key.Attribute == "" || timed && key.Attribute == m.event.Attribute {
			continue
		}
		if key.Pattern.IsZero() {
			return fmt.Errorf("no column gives %s, a key; map it: %s=COLUMN", key.Attribute, key.Attribute)
		}
		for _, capture := range key.Pattern.Captures() {
			_, given := by["{"+capture+"}"]
			given = given || timed && m.isEvent(capture)
			if !given && capture != schemas.CaptureMonth && !key.Pattern.Optional(capture) {
				return fmt.Errorf("no column gives %s, which the key %s is made of; map it: %s=COLUMN", capture, key.Attribute, capture)
			}
		}
	}
	return nil
}

// fromFields makes an item of a row of CSV. An empty field gives nothing.
func (m *Mapper) fromFields(plan []column, fields []string) (Item, error) {
	b := newItemBuilder(m)
	for _, c := range plan {
		if fields[c.index] == "" {
			continue
		}
		if err := b.add(c.target, text(fields[c.index]), true); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return b.finish()
}

// fromJSON makes an item of a line of JSON.
func (m *Mapper) fromJSON(line []byte) (Item, error) {
	fields, err := parseObject(line)
	if err != nil {
		return nil, err
	}
	item, exported, err := asExported(fields)
	if err != nil {
		return nil, err
	}
	if exported {
		return m.finishExported(item)
	}
	b := newItemBuilder(m)
	for _, name := range slices.Sorted(maps.Keys(m.explicit)) {
		v := lookUp(fields, name)
		if v == nil {
			continue
		}
		if err := b.add(m.target(m.explicit[name]), v, false); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if m.explicit[name] != "" {
			continue
		}
		t, use := m.use(name)
		if !use || m.isExplicit(t) {
			m.leftOut[name] = true
			continue
		}
		if err := b.add(t, fields[name], false); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return b.finish()
}

// isExplicit reports whether another column is mapped to the target.
func (m *Mapper) isExplicit(t target) bool {
	for _, name := range m.explicit {
		if m.target(name).name == t.name {
			return true
		}
	}
	return false
}

// lookUp finds a member by its name, or through objects by names joined by dots.
func lookUp(fields Item, name string) types.AttributeValue {
	if v, ok := fields[name]; ok {
		return v
	}
	first, rest, deeper := strings.Cut(name, ".")
	if inside, ok := fields[first].(*types.AttributeValueMemberM); ok && deeper {
		return lookUp(inside.Value, rest)
	}
	return nil
}

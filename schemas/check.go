package schemas

import (
	"slices"
	"strings"
)

// check reports what is wrong between the parts of a contract. Parts that are wrong in
// themselves are reported already and are left alone.
func (l *located) check(r *reader) {
	l.checkNames(r)
	for i := range l.Columns {
		l.checkSource(r, i)
	}
	l.checkCaptures(r)
	l.checkEventTime(r)
	l.checkTTL(r)
	l.checkIndexes(r)
	if l.Mode == Versions {
		l.checkVersions(r)
	}
}

func (l *located) checkNames(r *reader) {
	first := map[string]int{}
	for i, c := range l.Columns {
		_, ours := systemDescriptions[System(strings.ToLower(c.Name))]
		folded := strings.ToLower(c.Name)
		at := l.columns[i].at("name")
		j, taken := first[folded]
		switch {
		case c.Name == "":
			continue
		case taken && l.Columns[j].Name == c.Name:
			r.fail(at, "column %s stands there twice, first in line %d; remove one", c.Name, l.columns[j].node.Line)
		case taken:
			r.fail(at, "columns %s and %s differ only by case, which Athena folds; rename one", l.Columns[j].Name, c.Name)
		case folded == DayColumn || folded == HourColumn:
			r.fail(at, "column %s is a partition column and stands in the path, never in the file; rename it, for example to reading_%s", c.Name, folded)
		case ours:
			r.fail(at, "column %s has the name of a column that the pipeline adds; rename it, for example to device_%s", c.Name, folded)
		}
		if !taken {
			first[folded] = i
		}
	}
	attributes := map[string]string{}
	for i, c := range l.Columns {
		if c.Attribute == "" {
			continue
		}
		if other, taken := attributes[c.Attribute]; taken {
			r.fail(l.columns[i].at("attribute"), "column %s: attribute %s is in column %s already; remove one", c.Name, c.Attribute, other)
		}
		attributes[c.Attribute] = c.Name
	}
}

// checkSource checks that a column's attribute or capture can give its type.
func (l *located) checkSource(r *reader, i int) {
	c, o := l.Columns[i], l.columns[i]
	if c.Attribute != "" {
		l.checkAttribute(r, i)
	}
	if c.Key == "" || o.has("attribute") || !l.keysRead {
		return
	}
	key, ok := l.Keys.Key(c.Key)
	if !ok {
		var captures []string
		for _, k := range []Key{l.Keys.Partition, l.Keys.Sort} {
			captures = append(captures, k.Pattern.Captures()...)
		}
		if len(captures) > 0 {
			r.fail(o.at("key"), "%s: no key pattern has the capture {%s}; write one of %s", o.what, c.Key, strings.Join(captures, ", "))
		} else {
			r.fail(o.at("key"), "%s: no key has a pattern; write attribute: NAME", o.what)
		}
		return
	}
	if c.Type.Kind != "" && c.Type.Kind != String && c.Type.Kind != Timestamp {
		r.fail(o.at("type"), "%s: a key pattern holds text; write string or timestamp, or read the value from an attribute", o.what)
	}
	if key.Pattern.Optional(c.Key) && !c.Nullable {
		r.fail(o.node, "%s: {%s} is optional in the key %s; write nullable: true", o.what, c.Key, key.Attribute)
	}
}

func (l *located) checkAttribute(r *reader, i int) {
	c, o := l.Columns[i], l.columns[i]
	if slices.Contains(strings.Split(c.Attribute, "."), "") {
		r.fail(o.at("attribute"), "%s: attribute %q has an empty step; write names joined by dots, as in location.lat", o.what, c.Attribute)
		return
	}
	for _, k := range []Key{l.Keys.Partition, l.Keys.Sort} {
		if k.Attribute != c.Attribute || c.Type.Kind == "" {
			continue
		}
		if k.Type != c.ItemType() {
			r.fail(o.at("type"), "%s: the key %s is %s, but a column of type %s comes from %s; make them agree", o.what, k.Attribute, k.Type, c.Type, c.ItemType())
		}
		if c.Nullable {
			r.fail(o.at("nullable"), "%s: every item has its key; remove nullable", o.what)
		}
	}
}

// checkCaptures makes sure that a lake row says which item it is: what is in the key is in
// a column. The month and the event time follow from the event time's column.
func (l *located) checkCaptures(r *reader) {
	if len(l.Columns) == 0 || !l.keysRead {
		return
	}
	for _, k := range []Key{l.Keys.Partition, l.Keys.Sort} {
		if k.Attribute == "" || slices.ContainsFunc(l.Columns, func(c Column) bool { return c.Attribute == k.Attribute }) {
			continue
		}
		at := l.keys[k.Attribute]
		if k.Type == "N" {
			r.fail(at.node, "%s: %s is in no column, so rows of two items could not be told apart; write a column with attribute: %s", at.what, k.Attribute, k.Attribute)
		}
		for _, capture := range k.Pattern.Captures() {
			known := capture == CaptureMonth || capture == CaptureEventTime ||
				slices.ContainsFunc(l.Columns, func(c Column) bool { return c.Key == capture })
			if !known {
				r.fail(at.node, "%s: {%s} is in no column, so rows of two items could not be told apart; write a column with key: %s", at.what, capture, capture)
			}
		}
	}
}

func (l *located) checkEventTime(r *reader) {
	if l.EventTime == "" {
		return
	}
	at := l.root.at("event_time")
	c, ok := l.Column(l.EventTime)
	switch {
	case !ok:
		var times []string
		for _, c := range l.Columns {
			if c.Type.Kind == Timestamp {
				times = append(times, c.Name)
			}
		}
		instead := "a column of type timestamp and its name here"
		if len(times) > 0 {
			instead = strings.Join(times, " or ")
		}
		r.fail(at, "contract: event_time names no column %q; write %s", l.EventTime, instead)
	case c.Type.Kind != "" && c.Type.Kind != Timestamp:
		r.fail(at, "contract: event_time %s is %s; write a column of type timestamp", l.EventTime, c.Type)
	case c.Nullable:
		r.fail(at, "contract: event_time %s is nullable, and a row without a time has no partition; remove nullable there", l.EventTime)
	}
}

func (l *located) checkTTL(r *reader) {
	if l.root.has("ttl") != l.root.has("retention") {
		if l.root.has("ttl") {
			r.fail(l.root.at("ttl"), "contract: ttl without retention; write retention: 30d, how long the table keeps a row")
		} else {
			r.fail(l.root.at("retention"), "contract: retention without ttl; write ttl: the attribute that holds the time to delete at, in epoch seconds")
		}
	}
	if l.TTL == "" {
		if l.root.has("on_expire") {
			r.fail(l.root.at("on_expire"), "contract: on_expire without ttl says nothing; remove it, or write ttl and retention")
		}
		return
	}
	if strings.Contains(l.TTL, ".") {
		r.fail(l.root.at("ttl"), "contract: ttl %s is inside a map, where DynamoDB does not look; write a top-level attribute", l.TTL)
	}
	if slices.Contains(l.Keys.Attributes(), l.TTL) {
		r.fail(l.root.at("ttl"), "contract: ttl %s is a key; write an attribute of its own", l.TTL)
		return
	}
	for i, c := range l.Columns {
		if c.Attribute == l.TTL && c.Type.Kind != "" && c.Type.Kind != BigInt && c.Encoding != EpochSecond {
			r.fail(l.columns[i].node, "%s: %s is the TTL, a number of epoch seconds; write type: timestamp and encoding: epoch_seconds", l.columns[i].what, l.TTL)
		}
	}
}

func (l *located) checkIndexes(r *reader) {
	names := map[string]bool{}
	for i, index := range l.Indexes {
		o := l.indexes[i]
		if names[index.Name] && index.Name != "" {
			r.fail(o.at("name"), "%s stands there twice; rename one", o.what)
		}
		names[index.Name] = true
		if index.Sort == index.Partition && index.Sort != "" {
			r.fail(o.at("sort"), "%s: partition and sort are both %s; write another sort, or remove it", o.what, index.Sort)
		}
		sparse := ""
		for _, key := range []string{"partition", "sort"} {
			attribute := index.Partition
			if key == "sort" {
				attribute = index.Sort
			}
			if attribute == "" {
				continue
			}
			typ, ok := l.AttributeType(attribute)
			if !ok || typ == "BOOL" {
				r.fail(o.at(key), "%s: %s is no key and no column of a text or number attribute; write an attribute that is, or add its column", o.what, attribute)
			}
			if j := slices.IndexFunc(l.Columns, func(c Column) bool { return c.Attribute == attribute }); j >= 0 && l.Columns[j].Nullable {
				sparse = attribute
			}
		}
		if sparse != "" && !index.Sparse {
			r.fail(o.node, "%s: items without %s are not in it; write sparse: true", o.what, sparse)
		}
	}
}

// checkVersions refuses what only an append-only table can choose.
func (l *located) checkVersions(r *reader) {
	if l.root.has("on_modify") {
		r.fail(l.root.at("on_modify"), "contract: mode versions keeps every version, on_modify says nothing; remove it, or write mode: append")
	}
	if l.OnRemove == RemoveReject {
		r.fail(l.root.at("on_remove"), "contract: mode versions needs its deletions, or the latest version of a deleted item stays; write on_remove: tombstones, or remove it")
	}
	if l.root.has("positions") && !l.Positions {
		r.fail(l.root.at("positions"), "contract: mode versions always has positions, for they order the versions; remove positions")
	}
	l.Positions = true
}

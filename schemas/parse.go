package schemas

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Format is the version of the contract file's format that this package reads.
const Format = 1

// Parse reads the text of a contract file; file is the name that problems are reported
// under. The error is a *ParseError. The keys of a contract are:
//
//	format           1
//	name             of the readings table in the lake: lower case letters, digits, underscores
//	table            name of the DynamoDB table
//	description      optional; comment of the table in Athena
//	mode             append (default) or versions
//	keys             partition and, if there is one, sort; each with
//	  attribute      name of the key attribute
//	  type           S (default) or N
//	  pattern        of an S key, see Pattern; default {ATTRIBUTE}
//	ttl              optional; top-level Number attribute of epoch seconds
//	retention        with ttl: how long the table keeps a row, in whole days, as in 30d
//	indexes          optional list; each with name, partition, optional sort, and
//	                 sparse: true if not every item has its keys
//	columns          list; each with
//	  name           lower case letters, digits, underscores
//	  attribute      path in the item, map keys joined by dots; or
//	  key            capture of a key pattern
//	  type           see ParseType
//	  encoding       of a timestamp: iso8601, epoch_seconds, epoch_milliseconds
//	  unit           optional text
//	  nullable       true or false (default)
//	  description    optional; comment of the column in Athena
//	event_time       name of the column that says when the reading was taken
//	layout           with partition_by, day (default) or hour, first_partition and, if
//	                 readings end, last_partition, both days, both inclusive
//	on_modify        of mode append: changes (default), row or reject
//	on_remove        what a user's deletion becomes: tombstones (default) or, of mode append, reject
//	on_expire        with ttl, what a removal by TTL becomes: ignore (default) or tombstones. Under
//	                 ignore the view of the latest versions goes on showing what has expired
//	positions        true or false (default): whether readings carry shard and sequence number
func Parse(file string, text []byte) (*Contract, error) {
	r := &reader{file: file}
	if !utf8.Valid(text) {
		valid := bytes.ToValidUTF8(text, nil)
		line := 1
		for i := range text {
			if i >= len(valid) || text[i] != valid[i] {
				break
			}
			if text[i] == '\n' {
				line++
			}
		}
		r.failLine(line, "not UTF-8; save the file as UTF-8")
		return nil, r.err()
	}
	root := r.document(text)
	if root == nil {
		return nil, r.err()
	}
	c := r.contract(root)
	if err := r.err(); err != nil {
		return nil, err
	}
	c.text = bytes.Clone(text)
	return c, nil
}

// located is a contract with the nodes that its parts came from, for the lines of what is
// wrong between them.
type located struct {
	*Contract
	root    *object
	keys    map[string]*object // by attribute
	columns []*object          // as Contract.Columns
	indexes []*object          // as Contract.Indexes
	// keysRead is false if something was wrong with the keys themselves. Columns are then not
	// compared with them.
	keysRead bool
}

func (r *reader) contract(root *yaml.Node) *Contract {
	o := r.object(root, "contract", "format", "name", "table", "description", "mode", "keys", "ttl", "retention",
		"indexes", "columns", "event_time", "layout", "on_modify", "on_remove", "on_expire", "positions")
	c := &Contract{}
	l := &located{Contract: c, root: o, keys: map[string]*object{}}
	c.Format = r.format(o)
	if c.Format != Format {
		// Nothing else can be judged by the rules of another format.
		return c
	}
	c.Name = o.required("name", "device_telemetry")
	if err := checkColumnName(c.Name); err != nil && c.Name != "" {
		r.fail(o.at("name"), "contract: %v", err)
	} else if len(c.Name) > maxTableName {
		r.fail(o.at("name"), "contract: name %q is longer than %d characters; shorten it", c.Name, maxTableName)
	}
	for _, role := range []Role{Changes, Tombstones, Quarantine} {
		if short, ok := strings.CutSuffix(c.Name, "_"+string(role)); ok {
			r.fail(o.at("name"), "contract: name %s is that of the %s of a contract %s; write another name", c.Name, role, short)
		}
	}
	if short, ok := strings.CutSuffix(c.Name, latestSuffix); ok {
		r.fail(o.at("name"), "contract: name %s is that of the latest versions of a contract %s; write another name", c.Name, short)
	}
	if isOwnName(c.Name) {
		r.fail(o.at("name"), "contract: name %s is that of a table in which the pipeline tells of itself; write another name", c.Name)
	}
	c.Table = o.required("table", "device-telemetry")
	r.checkDynamoName(o.at("table"), "contract: table", c.Table)
	c.Description = r.description(o, maxTableComment)
	c.Mode = Mode(o.oneOf("mode", string(Append), string(Versions)))
	before := len(r.problems)
	c.Keys = r.keys(l)
	l.keysRead = len(r.problems) == before
	c.TTL = o.text("ttl")
	c.Retention = r.retention(o)
	c.Columns = r.columns(l)
	c.Indexes = r.indexes(l)
	c.EventTime = o.required("event_time", "event_ts, the column that says when a reading was taken")
	c.Layout = r.layout(o)
	c.OnModify = OnModify(o.oneOf("on_modify", string(ModifyChanges), string(ModifyRow), string(ModifyReject)))
	c.OnRemove = OnRemove(o.oneOf("on_remove", string(RemoveTombstones), string(RemoveReject)))
	c.OnExpire = OnExpire(o.oneOf("on_expire", string(ExpireIgnore), string(ExpireTombstones)))
	c.Positions = o.flag("positions")
	l.check(r)
	return c
}

const (
	maxTableName    = 128 - len("_quarantine")
	maxTableComment = 2048 // Glue: Table.Description
	maxComment      = 255  // Glue: Column.Comment
	maxRetention    = 36500
)

func (r *reader) format(o *object) int {
	s := o.required("format", strconv.Itoa(Format))
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(s)
	switch {
	case err != nil || n < 1:
		r.fail(o.at("format"), "contract: format is %q; write %d", s, Format)
	case n > Format:
		r.fail(o.at("format"), "contract: format %d is newer than this program, which reads %d; use a newer program, or write %d", n, Format, Format)
	}
	return n
}

var dynamoName = regexp.MustCompile(`^[A-Za-z0-9_.-]{3,255}$`)

func (r *reader) checkDynamoName(at *yaml.Node, what, name string) {
	if name != "" && !dynamoName.MatchString(name) {
		r.fail(at, "%s %q is no name in DynamoDB; write 3 to 255 letters, digits, dots, dashes and underscores", what, name)
	}
}

// description reads a text as one line. The limit is Glue's, in bytes, so that a comment is
// never refused when a table is created.
func (r *reader) description(o *object, limit int) string {
	s := strings.Join(strings.Fields(o.text("description")), " ")
	if len(s) > limit {
		r.fail(o.at("description"), "%s: description has %d bytes, Athena keeps %d; shorten it", o.what, len(s), limit)
	}
	if strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		r.fail(o.at("description"), "%s: description has a control character; remove it", o.what)
	}
	return s
}

var wholeDays = regexp.MustCompile(`^[1-9][0-9]{0,5}d$`)

func (r *reader) retention(o *object) time.Duration {
	s := o.text("retention")
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSuffix(s, "d"))
	if !wholeDays.MatchString(s) || err != nil || n > maxRetention {
		r.fail(o.at("retention"), "contract: retention is %q; write whole days, as in 30d", s)
		return 0
	}
	return time.Duration(n) * oneDay
}

func (r *reader) keys(l *located) Keys {
	if !l.root.has("keys") {
		if l.root.node.Kind == yaml.MappingNode {
			r.fail(l.root.node, "contract: no keys; write keys with partition and, if the table has one, sort, each with attribute and type")
		}
		return Keys{}
	}
	o := r.object(l.root.at("keys"), "keys", "partition", "sort")
	var k Keys
	if o.has("partition") {
		k.Partition = r.key(l, o, "partition")
	} else if o.node.Kind == yaml.MappingNode {
		r.fail(o.node, "keys: no partition; write partition with attribute and type")
	}
	if o.has("sort") {
		k.Sort = r.key(l, o, "sort")
	}
	return k
}

func (r *reader) key(l *located, keys *object, name string) Key {
	o := r.object(keys.at(name), name+" key", "attribute", "type", "pattern")
	k := Key{Attribute: o.required("attribute", "device_id"), Type: o.oneOf("type", "S", "N")}
	if l.keys[k.Attribute] != nil && k.Attribute != "" {
		r.fail(o.at("attribute"), "%s: %s is the partition key already; write the sort key's attribute", o.what, k.Attribute)
	}
	l.keys[k.Attribute] = o
	text := o.text("pattern")
	switch {
	case k.Type == "N" && text != "":
		r.fail(o.at("pattern"), "%s: a key of type N has no pattern; remove it, or write type: S", o.what)
		return k
	case k.Type == "N" || k.Attribute == "":
		return k
	case text == "":
		// Without a pattern the whole text is one capture, named as the attribute.
		text = "{" + k.Attribute + "}"
	}
	p, err := ParsePattern(text)
	if err != nil {
		r.fail(o.at("pattern"), "%s: %v", o.what, err)
	}
	k.Pattern = p
	return k
}

func (r *reader) columns(l *located) []Column {
	if !l.root.has("columns") {
		if l.root.node.Kind == yaml.MappingNode {
			r.fail(l.root.node, "contract: no columns; write columns, each with name, attribute or key, and type")
		}
		return nil
	}
	nodes := l.root.list("columns")
	if len(nodes) == 0 && l.root.at("columns").Kind == yaml.SequenceNode {
		r.fail(l.root.at("columns"), "contract: columns is empty; write at least the event time")
	}
	var columns []Column
	for _, n := range nodes {
		columns = append(columns, r.column(l, n))
	}
	return columns
}

func (r *reader) column(l *located, n *yaml.Node) Column {
	o := r.object(n, named("column", n), "name", "attribute", "key", "type", "encoding", "unit", "nullable", "description")
	c := Column{Name: o.required("name", "battery_pct")}
	if c.Name != "" {
		if err := checkColumnName(c.Name); err != nil {
			r.fail(o.at("name"), "column: %v", err)
		}
	}
	l.columns = append(l.columns, o)
	c.Attribute, c.Key = o.text("attribute"), o.text("key")
	switch {
	case o.has("attribute") && o.has("key"):
		r.fail(o.at("key"), "%s: both attribute and key; write attribute if the item holds the value, key if a key pattern does", o.what)
	case !o.has("attribute") && !o.has("key") && n.Kind == yaml.MappingNode:
		r.fail(n, "%s: nothing says where its value comes from; write attribute: NAME, or key: CAPTURE", o.what)
	}
	if s := o.required("type", "decimal(5,2)"); s != "" {
		t, err := ParseType(s)
		if err != nil {
			r.fail(o.at("type"), "%s: %v", o.what, err)
		}
		c.Type = t
	}
	c.Encoding = r.encoding(o, c)
	c.Unit = o.text("unit")
	c.Nullable = o.flag("nullable")
	c.Description = r.description(o, maxComment-len(c.Unit)-len(" []"))
	return c
}

func (r *reader) encoding(o *object, c Column) Encoding {
	const choice = "iso8601, epoch_seconds or epoch_milliseconds"
	switch {
	case c.Type.Kind == "":
		return ""
	case c.Type.Kind != Timestamp:
		if o.has("encoding") {
			r.fail(o.at("encoding"), "%s: encoding is for timestamps, the type is %s; remove it", o.what, c.Type)
		}
		return ""
	case !o.has("encoding"):
		r.fail(o.node, "%s: a timestamp without encoding; write encoding: %s", o.what, choice)
		return ""
	}
	e := Encoding(o.oneOf("encoding", string(ISO8601), string(EpochSecond), string(EpochMilli)))
	if c.Key != "" && e != ISO8601 {
		r.fail(o.at("encoding"), "%s: a key pattern holds text; write encoding: iso8601, or read the time from an attribute", o.what)
	}
	return e
}

func (r *reader) indexes(l *located) []Index {
	var indexes []Index
	for _, n := range l.root.list("indexes") {
		o := r.object(n, named("index", n), "name", "partition", "sort", "sparse")
		i := Index{Name: o.required("name", "job_site_index")}
		r.checkDynamoName(o.at("name"), "index: name", i.Name)
		i.Partition, i.Sort = o.required("partition", "job_site_id"), o.text("sort")
		i.Sparse = o.flag("sparse")
		indexes = append(indexes, i)
		l.indexes = append(l.indexes, o)
	}
	return indexes
}

func (r *reader) layout(root *object) Layout {
	l := Layout{Unit: Day}
	if !root.has("layout") {
		if root.node.Kind == yaml.MappingNode {
			r.fail(root.node, "contract: no layout; write layout with partition_by: day and first_partition: the first day with readings")
		}
		return l
	}
	o := r.object(root.at("layout"), "layout", "partition_by", "first_partition", "last_partition")
	l.Unit = Unit(o.oneOf("partition_by", string(Day), string(Hour)))
	if s := o.required("first_partition", "2020-01-01"); s != "" {
		l.FirstPartition = r.day(o, "first_partition", s)
	}
	if s := o.text("last_partition"); s != "" {
		l.LastPartition = r.day(o, "last_partition", s)
		// Trino refuses a projection whose range is a single day.
		if !l.LastPartition.IsZero() && !l.LastPartition.After(l.FirstPartition) {
			r.fail(o.at("last_partition"), "layout: last_partition %s is not after first_partition; write a later day, or remove it", s)
		}
	}
	return l
}

func (r *reader) day(o *object, key, s string) time.Time {
	t, err := time.Parse(dayFormat, s)
	if err != nil || t.Year() < 1970 {
		r.fail(o.at(key), "layout: %s is %q; write a day since 1970, as in 2020-01-01", key, s)
		return time.Time{}
	}
	return t
}

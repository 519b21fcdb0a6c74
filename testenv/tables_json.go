package testenv

import (
	"cmp"
	"slices"
	"strconv"
	"time"
)

// tableAnswer is the description of a table; the caller holds commit.
func tableAnswer(member string, t *table, status string) []byte {
	var d jsonObject
	var list [][]byte
	for _, a := range t.attributes {
		var o jsonObject
		o.str("AttributeName", a.name)
		o.str("AttributeType", a.kind.String())
		list = append(list, o.done())
	}
	d.raw("AttributeDefinitions", appendArray(nil, list))
	d.str("TableName", t.name)
	d.raw("KeySchema", t.keys.json())
	d.str("TableStatus", status)
	d.raw("CreationDateTime", appendTime(nil, t.created))
	var p jsonObject
	p.integer("NumberOfDecreasesToday", 0)
	p.integer("ReadCapacityUnits", int64(t.throughput[0]))
	p.integer("WriteCapacityUnits", int64(t.throughput[1]))
	d.raw("ProvisionedThroughput", p.done())
	if t.billing != "PROVISIONED" {
		var o jsonObject
		o.str("BillingMode", t.billing)
		d.raw("BillingModeSummary", o.done())
	}
	d.integer("TableSizeBytes", t.bytes)
	d.integer("ItemCount", t.items)
	d.str("TableArn", t.arn)
	d.str("TableId", t.uuid)
	if len(t.indexes) > 0 {
		list = nil
		for _, x := range t.indexes {
			list = append(list, x.json())
		}
		d.raw("GlobalSecondaryIndexes", appendArray(nil, list))
	}
	if t.stream != nil {
		var o jsonObject
		o.flag("StreamEnabled", true)
		o.str("StreamViewType", t.stream.view)
		d.raw("StreamSpecification", o.done())
	}
	if t.latest != nil {
		d.str("LatestStreamLabel", t.latest.label)
		d.str("LatestStreamArn", t.latest.arn)
	}
	d.flag("DeletionProtectionEnabled", t.protected)
	var o jsonObject
	o.raw(member, d.done())
	return o.done()
}

func (s *keySchema) json() []byte {
	var list [][]byte
	for i, name := range []string{s.partition, s.sort} {
		if name == "" {
			continue
		}
		var o jsonObject
		o.str("AttributeName", name)
		o.str("KeyType", []string{"HASH", "RANGE"}[i])
		list = append(list, o.done())
	}
	return appendArray(nil, list)
}

func (x *index) json() []byte {
	var p, o jsonObject
	p.str("ProjectionType", x.project)
	if len(x.include) > 0 {
		var list [][]byte
		for _, n := range x.include {
			list = append(list, appendString(nil, n))
		}
		p.raw("NonKeyAttributes", appendArray(nil, list))
	}
	o.str("IndexName", x.name)
	o.raw("KeySchema", x.keys.json())
	o.raw("Projection", p.done())
	o.str("IndexStatus", "ACTIVE")
	o.str("IndexArn", x.table.arn+"/index/"+x.name)
	return o.done()
}

// appendTime appends a timestamp as epoch seconds with milliseconds.
func appendTime(b []byte, t time.Time) []byte {
	ms := t.UnixMilli()
	b = strconv.AppendInt(b, ms/1000, 10)
	if ms %= 1000; ms != 0 {
		b = append(b, '.', byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10))
	}
	return b
}

func sortTables(ts []*table) {
	slices.SortFunc(ts, func(a, b *table) int { return cmp.Compare(a.id, b.id) })
}

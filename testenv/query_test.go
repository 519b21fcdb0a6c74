package testenv_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// sorts returns the sort keys of the items.
func sorts(items []attrs) []string {
	var out []string
	for _, it := range items {
		out = append(out, it["sk"].(*types.AttributeValueMemberS).Value)
	}
	return out
}

// all runs a query to its end and returns the sort keys and the number of pages.
func (w *world) all(t testing.TB, in *dynamodb.QueryInput) (keys []string, pages int) {
	t.Helper()
	p := dynamodb.NewQueryPaginator(w.db, in)
	for p.HasMorePages() {
		out, err := p.NextPage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if int(out.Count) != len(out.Items) {
			t.Errorf("count %d of %d items", out.Count, len(out.Items))
		}
		keys = append(keys, sorts(out.Items)...)
		pages++
	}
	return keys, pages
}

func TestQueryBySortKey(t *testing.T) {
	w := open(t)
	w.create(t, "things")
	for _, sk := range []string{"a", "b", "b\x00", "ba", "bb", "c", "é"} {
		w.put(t, "things", key("p", sk))
		w.put(t, "things", key("p\x00", sk))
		w.put(t, "things", key("other", sk))
	}
	for cond, want := range map[string][]string{
		"pk = :p":                              {"a", "b", "b\x00", "ba", "bb", "c", "é"},
		"pk = :p AND sk = :b":                  {"b"},
		"pk = :p AND sk < :b":                  {"a"},
		"pk = :p AND sk <= :b":                 {"a", "b"},
		"pk = :p AND sk > :b":                  {"b\x00", "ba", "bb", "c", "é"},
		"pk = :p AND sk >= :b":                 {"b", "b\x00", "ba", "bb", "c", "é"},
		"sk >= :b AND pk = :p":                 {"b", "b\x00", "ba", "bb", "c", "é"},
		"pk = :p AND sk BETWEEN :b AND :c":     {"b", "b\x00", "ba", "bb", "c"},
		"pk = :p AND begins_with(sk, :b)":      {"b", "b\x00", "ba", "bb"},
		"(pk = :p) AND (begins_with(sk, :ba))": {"ba"},
		"pk = :z":                              nil,
	} {
		vs := attrs{}
		for n, v := range (attrs{":p": S("p"), ":b": S("b"), ":ba": S("ba"), ":c": S("c"), ":z": S("z")}) {
			for _, word := range strings.FieldsFunc(cond, func(r rune) bool { return strings.ContainsRune(" ,()", r) }) {
				if word == n {
					vs[n] = v
				}
			}
		}
		for _, forward := range []bool{true, false} {
			for _, limit := range []int32{0, 1, 3} {
				in := &dynamodb.QueryInput{TableName: aws.String("things"), KeyConditionExpression: aws.String(cond),
					ExpressionAttributeValues: vs, ScanIndexForward: aws.Bool(forward)}
				if limit > 0 {
					in.Limit = aws.Int32(limit)
				}
				got, _ := w.all(t, in)
				expect := slices.Clone(want)
				if !forward {
					slices.Reverse(expect)
				}
				if !slices.Equal(got, expect) {
					t.Errorf("%s forward %v limit %d: got %q, want %q", cond, forward, limit, got, expect)
				}
			}
		}
	}
	for _, cond := range []string{"sk = :p", "pk > :p", "pk = :p OR sk = :p", "pk = :p AND pk = :p", "pk = :p AND v = :p", "pk = :p AND sk <> :p", "NOT pk = :p", "pk = sk"} {
		in := &dynamodb.QueryInput{TableName: aws.String("things"), KeyConditionExpression: aws.String(cond)}
		if strings.Contains(cond, ":p") {
			in.ExpressionAttributeValues = attrs{":p": S("p")}
		}
		_, err := w.db.Query(ctx, in)
		wantCode(t, err, "ValidationException")
	}
}

func TestQueryFiltersAfterTheLimit(t *testing.T) {
	w := open(t)
	w.create(t, "things")
	for i := range 10 {
		it := key("p", fmt.Sprint(i))
		it["n"] = N(fmt.Sprint(i))
		w.put(t, "things", it)
	}
	out, err := w.db.Query(ctx, &dynamodb.QueryInput{TableName: aws.String("things"), KeyConditionExpression: aws.String("pk = :p"),
		FilterExpression: aws.String("n >= :n"), ProjectionExpression: aws.String("#n"), ExpressionAttributeNames: map[string]string{"#n": "n"},
		ExpressionAttributeValues: attrs{":p": S("p"), ":n": N("4")}, Limit: aws.Int32(6)})
	if err != nil {
		t.Fatal(err)
	}
	if out.Count != 2 || out.ScannedCount != 6 || !reflect.DeepEqual(out.Items, []attrs{{"n": N("4")}, {"n": N("5")}}) || !reflect.DeepEqual(out.LastEvaluatedKey, key("p", "5")) {
		t.Errorf("got %+v", out)
	}
	out, err = w.db.Query(ctx, &dynamodb.QueryInput{TableName: aws.String("things"), KeyConditionExpression: aws.String("pk = :p"),
		ExpressionAttributeValues: attrs{":p": S("p")}, Select: types.SelectCount})
	if err != nil || out.Count != 10 || out.Items != nil {
		t.Errorf("count %+v, %v", out, err)
	}
}

func TestPagesEndAtOneMegabyte(t *testing.T) {
	w := open(t)
	w.create(t, "things")
	for i := range 25 {
		it := key("p", fmt.Sprintf("%02d", i))
		it["s"] = S(strings.Repeat("x", 100<<10))
		w.put(t, "things", it)
	}
	keys, pages := w.all(t, &dynamodb.QueryInput{TableName: aws.String("things"), KeyConditionExpression: aws.String("pk = :p"),
		ExpressionAttributeValues: attrs{":p": S("p")}})
	if len(keys) != 25 || pages != 3 {
		t.Errorf("%d items in %d pages", len(keys), pages)
	}
}

func TestIndexFollowsItsTable(t *testing.T) {
	w := open(t)
	w.create(t, "things", withIndex("all", types.ProjectionTypeAll), withIndex("keys", types.ProjectionTypeKeysOnly), withIndex("some", types.ProjectionTypeInclude, "v"))
	// A model of the table, changed in the same way as the table.
	model := map[string]attrs{}
	r := rand.New(rand.NewPCG(1, 2))
	for range 400 {
		pk, sk := fmt.Sprintf("p%d", r.IntN(4)), fmt.Sprintf("s%d", r.IntN(10))
		k, id := key(pk, sk), pk+"/"+sk
		if r.IntN(4) == 0 {
			if _, err := w.db.DeleteItem(ctx, &dynamodb.DeleteItemInput{TableName: aws.String("things"), Key: k}); err != nil {
				t.Fatal(err)
			}
			delete(model, id)
			continue
		}
		k["v"], k["x"] = N(fmt.Sprint(r.IntN(3))), N("1")
		if r.IntN(5) > 0 {
			k["site"] = S(fmt.Sprintf("site%d", r.IntN(2)))
		}
		if r.IntN(5) > 0 {
			k["at"] = N(fmt.Sprint(r.IntN(30) - 15))
		}
		w.put(t, "things", k)
		model[id] = k
	}
	for _, index := range []string{"all", "keys", "some"} {
		for _, site := range []string{"site0", "site1"} {
			var want []string
			for _, it := range model {
				if reflect.DeepEqual(it["site"], S(site)) && it["at"] != nil {
					want = append(want, describe(it, index))
				}
			}
			var got []string
			p := dynamodb.NewQueryPaginator(w.db, &dynamodb.QueryInput{TableName: aws.String("things"), IndexName: aws.String(index), Limit: aws.Int32(4),
				KeyConditionExpression: aws.String("site = :s"), ExpressionAttributeValues: attrs{":s": S(site)}})
			last := -100
			for p.HasMorePages() {
				out, err := p.NextPage(ctx)
				if err != nil {
					t.Fatal(err)
				}
				for _, it := range out.Items {
					var at int
					fmt.Sscan(it["at"].(*types.AttributeValueMemberN).Value, &at)
					if at < last {
						t.Errorf("index %s: %d after %d", index, at, last)
					}
					last = at
					got = append(got, describe(it, index))
				}
			}
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("index %s, %s:\ngot  %q\nwant %q", index, site, got, want)
			}
		}
	}
	got, _ := w.all(t, &dynamodb.QueryInput{TableName: aws.String("things"), IndexName: aws.String("all"), ScanIndexForward: aws.Bool(false), Limit: aws.Int32(1),
		KeyConditionExpression:    aws.String("site = :s AND #at BETWEEN :lo AND :hi"),
		ExpressionAttributeNames:  map[string]string{"#at": "at"},
		ExpressionAttributeValues: attrs{":s": S("site0"), ":lo": N("-5"), ":hi": N("5")}})
	n := 0
	for _, it := range model {
		if a, ok := it["at"].(*types.AttributeValueMemberN); ok && reflect.DeepEqual(it["site"], S("site0")) {
			var at int
			fmt.Sscan(a.Value, &at)
			if at >= -5 && at <= 5 {
				n++
			}
		}
	}
	if len(got) != n {
		t.Errorf("the range has %d items, want %d", len(got), n)
	}
}

// describe writes the attributes of an item that the index projects.
func describe(it attrs, index string) string {
	names := map[string][]string{"all": {"pk", "sk", "site", "at", "v", "x"}, "keys": {"pk", "sk", "site", "at"}, "some": {"pk", "sk", "site", "at", "v"}}[index]
	var b strings.Builder
	for _, n := range names {
		switch v := it[n].(type) {
		case *types.AttributeValueMemberS:
			b.WriteString(n + "=" + v.Value + " ")
		case *types.AttributeValueMemberN:
			b.WriteString(n + "=" + v.Value + " ")
		}
	}
	return b.String()
}

func TestScanSegmentsPartitionTheTable(t *testing.T) {
	w := open(t)
	w.create(t, "things", withIndex("by-site", types.ProjectionTypeAll))
	want := map[string]bool{}
	for i := range 200 {
		it := key(fmt.Sprint(i), "x")
		if i%2 == 0 {
			it["site"], it["at"] = S(fmt.Sprint(i%7)), N(fmt.Sprint(i))
		}
		w.put(t, "things", it)
		want[fmt.Sprint(i)] = true
	}
	for _, index := range []*string{nil, aws.String("by-site")} {
		for _, total := range []int32{1, 2, 3, 7} {
			got := map[string]bool{}
			n := 0
			for s := range total {
				p := dynamodb.NewScanPaginator(w.db, &dynamodb.ScanInput{TableName: aws.String("things"), IndexName: index,
					Segment: aws.Int32(s), TotalSegments: aws.Int32(total), Limit: aws.Int32(9)})
				for p.HasMorePages() {
					out, err := p.NextPage(ctx)
					if err != nil {
						t.Fatal(err)
					}
					for _, it := range out.Items {
						got[it["pk"].(*types.AttributeValueMemberS).Value] = true
						n++
					}
				}
			}
			expect := len(want)
			if index != nil {
				expect /= 2
			}
			if n != expect || len(got) != expect {
				t.Errorf("%d segments of %v: %d items, %d keys", total, index, n, len(got))
			}
		}
	}
	out, err := w.db.Scan(ctx, &dynamodb.ScanInput{TableName: aws.String("things"), FilterExpression: aws.String("pk = :p"), ExpressionAttributeValues: attrs{":p": S("17")}})
	if err != nil || out.Count != 1 || out.ScannedCount != 200 {
		t.Errorf("filtered scan %+v, %v", out, err)
	}
}

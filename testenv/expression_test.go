package testenv

import (
	"errors"
	"strings"
	"testing"
)

func parse(t testing.TB, text string) *node {
	t.Helper()
	n, err := parseJSON(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return &n
}

func readItem(t testing.TB, text string) item {
	t.Helper()
	it, err := decodeItem(parse(t, text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return it
}

const reading1 = `{"id":{"S":"d-17"},"n":{"N":"12345678901234567890123456789012345678"},"t":{"N":"21.5"},"neg":{"N":"-3"},
	"state":{"S":"ok"},"lit":{"BOOL":true},"empty1":{"NULL":true},"blob1":{"B":"AQID"},"tags":{"SS":["a","b"]},"nums":{"NS":["1","2.50"]},
	"list":{"L":[{"S":"x"},{"N":"7"},{"M":{"deep":{"N":"1"}}}]},"map":{"M":{"a":{"N":"1"},"b.c":{"S":"dot"},"in":{"M":{"k":{"L":[{"N":"5"}]}}}}}}`

func TestConditions(t *testing.T) {
	names := `{"#s":"state","#m":"map","#bc":"b.c","#l":"list","#in":"in"}`
	values := `{":n":{"N":"12345678901234567890123456789012345678"},":n1":{"N":"12345678901234567890123456789012345679"},":n0":{"N":"1234567890123456789012345678901234567.7"},
		":t":{"N":"21.50"},":ok":{"S":"ok"},":o":{"S":"o"},":bad":{"S":"bad"},":zero":{"N":"0"},":one":{"N":"1"},":two":{"N":"2"},":five":{"N":"5"},":seven":{"N":"7"},
		":true":{"BOOL":true},":null":{"NULL":true},":raw":{"B":"AQID"},":raw1":{"B":"AQ=="},":tags":{"SS":["b","a"]},":nums":{"NS":["2.5","1.0"]},
		":S":{"S":"S"},":L":{"S":"L"},":a":{"S":"a"},":z":{"S":"z"},":dot":{"S":"dot"},":tseven":{"S":"7"},":three":{"N":"3"}}`
	for expr, want := range map[string]bool{
		"attribute_exists(id)":                  true,
		"attribute_exists(nope)":                false,
		"attribute_not_exists(id)":              false,
		"attribute_not_exists(nope)":            true,
		"attribute_exists(#m.#bc)":              true,
		"attribute_exists(#m.#bc.x)":            false,
		"attribute_exists(#l[1])":               true,
		"attribute_exists(#l[3])":               false,
		"attribute_exists(#l[2].deep)":          true,
		"attribute_exists(empty1)":              true,
		"n = :n":                                true,
		"n = :n1":                               false, // equal as float64
		"n < :n1":                               true,
		"n >= :n1":                              false,
		"n <= :n":                               true,
		"n > :n0":                               true,
		"n <> :n1":                              true,
		"n BETWEEN :n AND :n1":                  true,
		"n IN (:n1, :t)":                        false,
		"n IN (:n1, :n)":                        true,
		"t = :t":                                true,
		"neg < :zero":                           true,
		"neg BETWEEN :zero AND :five":           false,
		"#s = :ok":                              true,
		"#s <> :ok":                             false,
		"#s > :o":                               true,
		"#s BETWEEN :a AND :z":                  true,
		"#s IN (:bad, :ok)":                     true,
		"NOT #s = :bad":                         true,
		"NOT (#s = :ok OR t = :t)":              false,
		"#s = :bad OR t = :t AND neg < :zero":   true,
		"#s = :ok OR #s = :bad AND t = :zero":   true, // AND binds tighter
		"(#s = :ok OR #s = :bad) AND t = :zero": false,
		"attribute_exists(id) AND NOT begins_with(#s, :a) AND t BETWEEN :five AND :n": true,
		"nope = :ok":                      false,
		"nope <> :ok":                     true,
		"nope < :one":                     false,
		"nope IN (:ok)":                   false,
		"#s = :seven":                     false,
		"#s < :seven":                     false, // types do not compare
		"#l[1] = :tseven":                 false,
		"#l[1] = :seven":                  true,
		"#l[2].deep = :one":               true,
		"#m.a = :one":                     true,
		"#m.#bc = :dot":                   true,
		"#m.#in.k[0] = :five":             true,
		"begins_with(#s, :o)":             true,
		"begins_with(#s, :z)":             false,
		"begins_with(blob1, :raw1)":       true,
		"begins_with(t, :o)":              false,
		"contains(#s, :o)":                true,
		"contains(tags, :a)":              true,
		"contains(tags, :z)":              false,
		"contains(#l, :seven)":            true,
		"contains(nums, :one)":            true,
		"attribute_type(#s, :S)":          true,
		"attribute_type(#l, :L)":          true,
		"attribute_type(t, :S)":           false,
		"size(#s) = :two":                 true,
		"size(blob1) = :three":            true,
		"size(tags) < :five":              true,
		"size(#l) = :three":               true,
		"size(#m) >= :three":              true,
		"size(t) > :zero":                 false, // a number has no size
		"size(#s) BETWEEN :one AND :five": true,
		"size(nope) = :zero":              false,
		"lit = :true":                     true,
		"empty1 = :null":                  true,
		"blob1 = :raw":                    true,
		"tags = :tags":                    true,
		"nums = :nums":                    true,
		"t = neg":                         false,
		"t > neg":                         true,
	} {
		got, err := evaluate(t, expr, names, values, reading1)
		if err != nil || got != want {
			t.Errorf("%s: got %v, %v; want %v", expr, got, err, want)
		}
	}
}

// evaluate runs a condition with those of the names and values that it uses.
func evaluate(t testing.TB, expr, names, values, it string) (bool, error) {
	t.Helper()
	e, err := compile(labelCondition, expr)
	if err != nil {
		return false, err
	}
	b := &binding{names: parse(t, names), values: readItem(t, values)}
	return b.matches(e, readItem(t, it))
}

func TestBadExpressionsAreRefused(t *testing.T) {
	for _, c := range []struct{ label, text, want string }{
		{labelCondition, "a = :x b = :y", "Syntax error"},
		{labelCondition, "a = :x)", "Syntax error"},
		{labelCondition, "(a = :x", "Syntax error"},
		{labelCondition, "a", "Syntax error"},
		{labelCondition, "a = ", "Syntax error"},
		{labelCondition, "a == :x", "Syntax error"},
		{labelCondition, "a + :x = :y", "Syntax error"},
		{labelCondition, "status = :x", "reserved keyword"},
		{labelCondition, "a.status = :x", "reserved keyword"},
		{labelCondition, "exists(a)", "Invalid function name"},
		{labelCondition, "attribute_exists(:a)", "document path"},
		{labelCondition, "attribute_exists(a, b)", "number of operands"},
		{labelCondition, "begins_with(a)", "number of operands"},
		{labelCondition, "if_not_exists(a, :x) = :x", "not allowed here"},
		{labelCondition, "a BETWEEN :x", "Syntax error"},
		{labelCondition, "a IN ()", "IN operator"},
		{labelCondition, "a[x] = :x", "whole number"},
		{labelUpdate, "SET a = :x SET b = :y", "Syntax error"},
		{labelUpdate, "SET a", "Syntax error"},
		{labelUpdate, "a = :x", "Syntax error"},
		{labelUpdate, "SET", "Syntax error"},
		{labelUpdate, "SET a = :x, a.b = :y", "overlap"},
		{labelUpdate, "SET a = size(b)", "not allowed here"},
		{labelUpdate, "ADD a b", "takes an expression attribute value"},
		{labelUpdate, "REMOVE a b", "Syntax error"},
		{labelProjection, "a, a[0]", "overlap"},
		{labelProjection, "a b", "Syntax error"},
	} {
		_, err := compile(c.label, c.text)
		var e *apiError
		if !errors.As(err, &e) || e.code != "ValidationException" || !strings.Contains(e.message, c.want) {
			t.Errorf("%s %q: got %v, want %q", c.label, c.text, err, c.want)
		}
	}
}

func TestWrongOperandsAreRefused(t *testing.T) {
	for expr, want := range map[string]string{
		"t < :true":                   "Incorrect operand type",
		"t BETWEEN :five AND :one":    "upper bound",
		"t BETWEEN :ok AND :one":      "same data type",
		"begins_with(state_, :one)":   "Incorrect operand type",
		"attribute_type(t, :unknown)": "Invalid attribute type",
	} {
		_, err := evaluate(t, expr, `{}`, `{":true":{"BOOL":true},":five":{"N":"5"},":one":{"N":"1"},":ok":{"S":"ok"},":unknown":{"S":"X"}}`, reading1)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", expr, err, want)
		}
	}
}

func TestUpdates(t *testing.T) {
	const before = `{"a":{"N":"10"},"b":{"S":"x"},"s":{"SS":["p","q"]},"l":{"L":[{"N":"0"},{"N":"1"},{"N":"2"},{"N":"3"}]},"m":{"M":{"k":{"N":"1"},"j":{"L":[{"S":"u"}]}}}}`
	const values = `{":1":{"N":"1"},":d":{"N":"0.1"},":big":{"N":"9007199254740993"},":y":{"S":"y"},":r":{"SS":["q","r"]},":pq":{"SS":["p","q"]},":li":{"L":[{"S":"new"}]},":e":{"M":{}}}`
	for expr, want := range map[string]string{
		"SET b = :y":                        `"b":{"S":"y"}`,
		"SET a = a + :1":                    `"a":{"N":"11"}`,
		"SET a = a - :d":                    `"a":{"N":"9.9"}`,
		"SET a = :big + :1":                 `"a":{"N":"9007199254740994"}`,
		"SET z = if_not_exists(z, :1)":      `"z":{"N":"1"}`,
		"SET a = if_not_exists(a, :1)":      `"a":{"N":"10"}`,
		"SET z = if_not_exists(z, :1) + :1": `"z":{"N":"2"}`,
		"SET a = m.k, b = a":                `"a":{"N":"1"},"b":{"N":"10"}`, // both see the old item
		"SET l = list_append(l, :li)":       `{"N":"3"},{"S":"new"}]`,
		"SET l = list_append(:li, l)":       `"l":{"L":[{"S":"new"},{"N":"0"}`,
		"SET l[1] = :y":                     `{"N":"0"},{"S":"y"},{"N":"2"}`,
		"SET l[99] = :y":                    `{"N":"3"},{"S":"y"}]`,
		"SET m.k = :y, m.#n = :e":           `"m":{"M":{"j":{"L":[{"S":"u"}]},"k":{"S":"y"},"new.one":{"M":{}}}}`,
		"SET m.j[0] = :1":                   `"j":{"L":[{"N":"1"}]}`,
		"REMOVE l[0], l[2]":                 `"l":{"L":[{"N":"1"},{"N":"3"}]}`,
		"REMOVE m.k":                        `"m":{"M":{"j":{"L":[{"S":"u"}]}}}`,
		"REMOVE b, nope":                    `{"a":{"N":"10"},"l":`,
		"ADD a :1":                          `"a":{"N":"11"}`,
		"ADD z :1":                          `"z":{"N":"1"}`,
		"ADD s :r":                          `"s":{"SS":["p","q","r"]}`,
		"ADD m.k :1":                        `"k":{"N":"2"}`,
		"DELETE s :r":                       `"s":{"SS":["p"]}`,
		"DELETE s :pq":                      `"j":{"L":[{"S":"u"}]},"k":{"N":"1"}}}}`, // an empty set does not exist
		"SET b = :y REMOVE a ADD z :1":      `{"b":{"S":"y"},"l":`,
		"REMOVE l[0] SET l[1] = :y":         `"l":{"L":[{"S":"y"},{"N":"2"},{"N":"3"}]}`,
	} {
		e, err := compile(labelUpdate, expr)
		if err != nil {
			t.Errorf("%s: %v", expr, err)
			continue
		}
		b := &binding{names: parse(t, `{"#n":"new.one"}`), values: readItem(t, values)}
		old := readItem(t, before)
		got, _, err := b.update(e, old)
		if text := string(appendItem(nil, got)); err != nil || !strings.Contains(text, want) {
			t.Errorf("%s: got %s, %v; want it to contain %s", expr, text, err, want)
		}
		if text := string(appendItem(nil, old)); text != string(appendItem(nil, readItem(t, before))) {
			t.Errorf("%s changed the old item to %s", expr, text)
		}
	}
	for expr, want := range map[string]string{
		"SET a = nope + :1":        "does not exist",
		"SET a = b + :1":           "incorrect data type",
		"SET a = nope":             "does not exist",
		"SET nope.x = :1":          "document path",
		"SET l.x = :1":             "document path",
		"ADD b :1":                 "incorrect data type",
		"ADD a :y":                 "Incorrect operand type",
		"DELETE a :r":              "incorrect data type",
		"SET #same = :1, b = :y":   "overlap",
		"SET a = list_append(a,l)": "incorrect data type",
	} {
		e, err := compile(labelUpdate, expr)
		if err != nil {
			t.Errorf("%s: %v", expr, err)
			continue
		}
		b := &binding{names: parse(t, `{"#same":"b"}`), values: readItem(t, values)}
		if _, _, err := b.update(e, readItem(t, before)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", expr, err, want)
		}
	}
}

func TestProjectionKeepsStructure(t *testing.T) {
	e, err := compile(labelProjection, "id, #l[2].deep, #l[0], #m.#bc, nope, #m.zz")
	if err != nil {
		t.Fatal(err)
	}
	b := &binding{names: parse(t, `{"#l":"list","#m":"map","#bc":"b.c"}`)}
	got := string(appendItem(nil, project(readItem(t, reading1), b.projection(e).paths)))
	want := `{"id":{"S":"d-17"},"list":{"L":[{"S":"x"},{"M":{"deep":{"N":"1"}}}]},"map":{"M":{"b.c":{"S":"dot"}}}}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestEqualItemsHaveEqualBytes(t *testing.T) {
	a := readItem(t, `{"b":{"NS":["2","1.50"]},"a":{"M":{"y":{"N":"1.0"},"x":{"S":"\u00e9\n\"\\"}}},"c":{"BS":["Ag==","AQ=="]}}`)
	b := readItem(t, `{"c":{"BS":["AQ==","Ag=="]},"a":{"M":{"x":{"S":"é\u000a\u0022\u005c"},"y":{"N":"1"}}},"b":{"NS":["1.5","2.0"]}}`)
	if x, y := encodeStored(a), encodeStored(b); string(x) != string(y) {
		t.Errorf("%s differs from %s", x, y)
	}
	again, err := decodeStored(encodeStored(a))
	if err != nil || !(value{kind: kindMap, attr: again}).equal(value{kind: kindMap, attr: a}) {
		t.Errorf("decoded %v, %v", again, err)
	}
}

func FuzzItemsSurviveTheirEncoding(f *testing.F) {
	f.Add(reading1)
	f.Add(`{"a":{"S":"\ud83d\ude00"},"b":{"L":[]},"c":{"M":{}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parseJSON(text)
		if err != nil {
			return
		}
		it, err := decodeItem(&n)
		if err != nil {
			return
		}
		stored := encodeStored(it)
		again, err := decodeStored(stored)
		if err != nil {
			t.Fatalf("%s cannot be read: %v", stored, err)
		}
		if s := encodeStored(again); string(s) != string(stored) {
			t.Fatalf("%s became %s", stored, s)
		}
	})
}

func FuzzExpressionsNeverPanic(f *testing.F) {
	for _, s := range []string{"a = :x", "NOT (a.b[0] <> :x) AND #n BETWEEN :x AND :y", "a IN (:x, b)", "size(a) > :y OR contains(a, :x)",
		"SET a = b + :y, c[0].d = list_append(if_not_exists(#n, :x), :l)", "ADD a :y DELETE s :s REMOVE b[1], b[0]", "a, b[2].c"} {
		f.Add(s)
	}
	values := readItem(f, `{":x":{"S":"x"},":y":{"N":"1"},":l":{"L":[{"S":"z"}]},":s":{"SS":["a"]}}`)
	it := readItem(f, `{"a":{"M":{"b":{"L":[{"N":"7"}]}}},"b":{"L":[{"S":"q"},{"M":{}}]},"c":{"N":"3"},"s":{"SS":["a","b"]},"n":{"S":"v"}}`)
	f.Fuzz(func(t *testing.T, text string) {
		before := string(appendItem(nil, it))
		for _, label := range []string{labelCondition, labelUpdate, labelProjection, labelKey} {
			e, err := compile(label, text)
			if err != nil {
				continue
			}
			b := &binding{names: &node{kind: '{', kids: []node{{kind: '"', name: "#n", text: "n"}}}, values: values}
			switch label {
			case labelUpdate:
				if out, _, err := b.update(e, it); err == nil {
					encodeStored(out)
				}
			case labelProjection:
				project(it, b.projection(e).paths)
			case labelKey:
				_, _, _, _ = keyRange(&keySchema{partition: "a", partitionKind: kindString}, e, b)
			default:
				_, _ = b.matches(e, it)
			}
		}
		if after := string(appendItem(nil, it)); after != before {
			t.Fatalf("%q changed the item to %s", text, after)
		}
	})
}

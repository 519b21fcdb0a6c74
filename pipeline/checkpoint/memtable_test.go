package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
)

// A memTable is one DynamoDB table behind the SDK's transport, as far as the store asks of one.
// Items are never changed in place, so that a snapshot is a copy of the map: a state of the whole
// system is cheap to keep and to come back to. That it answers as the service does is what the
// contract suites say, which run on it too.
type memTable struct {
	mu    sync.Mutex
	items map[string]memItem // by pk, \x00 and sk
	now   func() time.Time
}

type memItem map[string]memValue

// A memValue is an attribute: its type's letter and its text.
type memValue struct{ kind, text string }

func (v memValue) MarshalJSON() ([]byte, error) {
	if v.kind == "BOOL" {
		return []byte(`{"BOOL":` + v.text + `}`), nil
	}
	text, err := json.Marshal(v.text)
	return []byte(`{"` + v.kind + `":` + string(text) + `}`), err
}

func (v *memValue) UnmarshalJSON(b []byte) error {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	for kind, raw := range m {
		v.kind, v.text = kind, string(raw)
		if kind == "S" || kind == "N" {
			return json.Unmarshal(raw, &v.text)
		}
	}
	return nil
}

func newMemTable() *memTable {
	return &memTable{items: map[string]memItem{}, now: func() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }}
}

// store returns a store in the table, whose requests go through c if it is not nil.
func (m *memTable) store(c aws.HTTPClient, o Options) *Store {
	if c == nil {
		c = m
	}
	return New(dynamodb.New(dynamodb.Options{
		Region: "us-east-1", BaseEndpoint: aws.String("http://table.internal"), HTTPClient: c, Credentials: aws.AnonymousCredentials{},
		Retryer:                         retry.AddWithMaxAttempts(retry.NewStandard(func(o *retry.StandardOptions) { o.RateLimiter = ratelimit.None }), 1),
		DisableValidateResponseChecksum: true,
	}), "checkpoint", o)
}

type memRequest struct {
	Key, Item                 memItem
	ConditionExpression       string
	UpdateExpression          string
	KeyConditionExpression    string
	FilterExpression          string
	ExpressionAttributeNames  map[string]string
	ExpressionAttributeValues memItem
	ReturnValues              string
	TransactItems             []map[string]memRequest
	RequestItems              map[string][]struct{ DeleteRequest struct{ Key memItem } }
	ExclusiveStartKey         memItem
}

// Do answers one request.
func (m *memTable) Do(r *http.Request) (*http.Response, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var in memRequest
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	_, op, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	status, out := m.serve(op, in)
	text, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/x-amz-json-1.0"}, "Date": {m.now().UTC().Format(http.TimeFormat)}},
		Body:   io.NopCloser(bytes.NewReader(text)), ContentLength: int64(len(text)),
	}, nil
}

func memKey(it memItem) string { return it["pk"].text + "\x00" + it["sk"].text }

type answer map[string]any

func (m *memTable) serve(op string, in memRequest) (int, any) {
	switch op {
	case "DescribeTable":
		return 200, answer{"Table": answer{"TableStatus": "ACTIVE"}}
	case "GetItem":
		if it, ok := m.items[memKey(in.Key)]; ok {
			return 200, answer{"Item": it}
		}
		return 200, answer{}
	case "PutItem", "UpdateItem", "DeleteItem":
		k, next, ok := m.change(in, op == "DeleteItem")
		if !ok {
			return 400, answer{"__type": "x#ConditionalCheckFailedException", "message": "The conditional request failed", "Item": m.items[k]}
		}
		m.apply(k, next)
		if in.ReturnValues == "ALL_NEW" {
			return 200, answer{"Attributes": next}
		}
		return 200, answer{}
	case "TransactWriteItems":
		return m.transact(in)
	case "Query", "Scan":
		var items []memItem
		for _, k := range slices.Sorted(maps.Keys(m.items)) {
			it := m.items[k]
			e := memExpression{names: in.ExpressionAttributeNames, values: in.ExpressionAttributeValues, item: it}
			if c := in.KeyConditionExpression + in.FilterExpression; c == "" || e.holds(c) {
				items = append(items, it)
			}
		}
		return 200, answer{"Items": items, "Count": len(items)}
	case "BatchWriteItem":
		for _, reqs := range in.RequestItems {
			for _, r := range reqs {
				delete(m.items, memKey(r.DeleteRequest.Key))
			}
		}
		return 200, answer{"UnprocessedItems": answer{}}
	}
	return 400, answer{"__type": "x#ValidationException", "message": "no operation " + op}
}

// change returns what an item becomes, nil if it goes, and whether the condition holds.
func (m *memTable) change(in memRequest, remove bool) (string, memItem, bool) {
	k := memKey(in.Key)
	if in.Item != nil {
		k = memKey(in.Item)
	}
	e := memExpression{names: in.ExpressionAttributeNames, values: in.ExpressionAttributeValues, item: m.items[k]}
	if in.ConditionExpression != "" && !e.holds(in.ConditionExpression) {
		return k, nil, false
	}
	switch {
	case remove:
		return k, nil, true
	case in.Item != nil:
		return k, in.Item, true
	case in.UpdateExpression == "": // a check
		return k, m.items[k], true
	}
	next := maps.Clone(m.items[k])
	if next == nil {
		next = maps.Clone(in.Key)
	}
	e.update(next, in.UpdateExpression)
	return k, next, true
}

func (m *memTable) apply(k string, it memItem) {
	if it == nil {
		delete(m.items, k)
		return
	}
	m.items[k] = it
}

func (m *memTable) transact(in memRequest) (int, any) {
	var reasons []answer
	after := map[string]memItem{}
	failed := false
	for _, x := range in.TransactItems {
		for kind, r := range x {
			k, next, ok := m.change(r, kind == "Delete")
			if _, twice := after[k]; twice {
				return 400, answer{"__type": "x#ValidationException", "message": "Transaction request cannot include multiple operations on one item"}
			}
			after[k] = next
			if !ok {
				failed = true
				reasons = append(reasons, answer{"Code": "ConditionalCheckFailed", "Item": m.items[k]})
			} else {
				reasons = append(reasons, answer{"Code": "None"})
			}
		}
	}
	if len(after) > 100 {
		return 400, answer{"__type": "x#ValidationException", "message": "Member must have length less than or equal to 100"}
	}
	if failed {
		return 400, answer{"__type": "x#TransactionCanceledException", "message": "Transaction cancelled", "CancellationReasons": reasons}
	}
	for k, it := range after {
		if it != nil {
			m.items[k] = it
		}
	}
	return 200, answer{}
}

// A memExpression evaluates one expression on an item.
type memExpression struct {
	names  map[string]string
	values memItem
	item   memItem
	toks   []string
}

// tokens cuts an expression at blanks and signs.
func tokens(s string) []string {
	var out []string
	word := -1
	flush := func(i int) {
		if word >= 0 {
			out = append(out, s[word:i])
			word = -1
		}
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == ' ':
			flush(i)
		case strings.IndexByte("(),=+<>", c) >= 0:
			flush(i)
			if i+1 < len(s) && (c == '<' || c == '>') && (s[i+1] == '=' || s[i+1] == '>') {
				out = append(out, s[i:i+2])
				i++
			} else {
				out = append(out, string(c))
			}
		case word < 0:
			word = i
		}
	}
	flush(len(s))
	return out
}

func (e *memExpression) next() string {
	if len(e.toks) == 0 {
		return ""
	}
	t := e.toks[0]
	e.toks = e.toks[1:]
	return t
}

func (e *memExpression) eat(t string) bool {
	if len(e.toks) > 0 && e.toks[0] == t {
		e.toks = e.toks[1:]
		return true
	}
	return false
}

func (e *memExpression) must(t string) {
	if got := e.next(); got != t {
		panic(fmt.Sprintf("expression: %q where %q should be", got, t))
	}
}

func (e *memExpression) name(t string) string {
	if n, ok := e.names[t]; ok {
		return n
	}
	if strings.HasPrefix(t, "#") || slices.Contains([]string{"state", "key", "name", "token", "end", "next", "offset", "void", "from", "to", "cause", "before", "last", "first"}, t) {
		panic("expression: " + t + " is reserved, or has no name")
	}
	return t
}

func (e *memExpression) value(t string) memValue {
	v, ok := e.values[t]
	if !ok {
		panic("expression: no value " + t)
	}
	return v
}

// operand is an attribute, a value, or if_not_exists of both; false if the item has no such.
func (e *memExpression) operand() (memValue, bool) {
	t := e.next()
	switch {
	case t == "if_not_exists":
		e.must("(")
		v, ok := e.item[e.name(e.next())]
		e.must(",")
		or, there := e.operand()
		e.must(")")
		if ok {
			return v, true
		}
		return or, there
	case strings.HasPrefix(t, ":"):
		return e.value(t), true
	}
	v, ok := e.item[e.name(t)]
	return v, ok
}

func (e memExpression) holds(s string) bool {
	e.toks = tokens(s)
	ok := e.or()
	if len(e.toks) > 0 {
		panic("expression: " + strings.Join(e.toks, " ") + " is left")
	}
	return ok
}

func (e *memExpression) or() bool {
	ok := e.and()
	for e.eat("OR") {
		more := e.and()
		ok = ok || more
	}
	return ok
}

func (e *memExpression) and() bool {
	ok := e.test()
	for e.eat("AND") {
		more := e.test()
		ok = ok && more
	}
	return ok
}

func (e *memExpression) test() bool {
	if e.eat("(") {
		ok := e.or()
		e.must(")")
		return ok
	}
	for _, f := range []string{"attribute_exists", "attribute_not_exists", "begins_with"} {
		if !e.eat(f) {
			continue
		}
		e.must("(")
		v, ok := e.item[e.name(e.next())]
		if f == "begins_with" {
			e.must(",")
			prefix, _ := e.operand()
			e.must(")")
			return ok && strings.HasPrefix(v.text, prefix.text)
		}
		e.must(")")
		return ok == (f == "attribute_exists")
	}
	a, okA := e.operand()
	if op := e.next(); op != "IN" {
		b, okB := e.operand()
		return okA && okB && compare(a, op, b)
	}
	e.must("(")
	in := false
	for {
		b, _ := e.operand()
		in = in || okA && a == b
		if !e.eat(",") {
			break
		}
	}
	e.must(")")
	return in
}

func compare(a memValue, op string, b memValue) bool {
	if a.kind != b.kind {
		return op == "<>"
	}
	c := strings.Compare(a.text, b.text)
	if a.kind == "N" {
		c = number(a).Cmp(number(b))
	}
	switch op {
	case "=":
		return c == 0
	case "<>":
		return c != 0
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	case ">=":
		return c >= 0
	}
	panic("expression: no comparison " + op)
}

func number(v memValue) *big.Int {
	n, ok := new(big.Int).SetString(v.text, 10)
	if !ok {
		panic("expression: " + v.text + " is no whole number")
	}
	return n
}

func (e memExpression) update(next memItem, s string) {
	e.toks = tokens(s)
	for len(e.toks) > 0 {
		switch clause := e.next(); clause {
		case "SET":
			for {
				name := e.name(e.next())
				e.must("=")
				v, ok := e.operand()
				if !ok {
					panic("expression: nothing to set " + name + " to")
				}
				if e.eat("+") {
					w, _ := e.operand()
					v.text = new(big.Int).Add(number(v), number(w)).String()
				}
				next[name] = v
				if !e.eat(",") {
					break
				}
			}
		case "REMOVE":
			for {
				delete(next, e.name(e.next()))
				if !e.eat(",") {
					break
				}
			}
		default:
			panic("expression: no clause " + clause)
		}
	}
}

// newTable is a store in a table in memory that fails the test if it is asked what it cannot do.
func newTable(t testing.TB) (*memTable, *Store) {
	t.Helper()
	m := newMemTable()
	s := m.store(nil, Options{})
	if err := s.Create(context.Background()); err != nil {
		t.Fatal(err)
	}
	return m, s
}

package testenv_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"telemetrylake/testenv"
)

var ctx = context.Background()

// eachTransport runs a test in process and over HTTP.
func eachTransport(t *testing.T, run func(*testing.T, *world)) {
	t.Run("in process", func(t *testing.T) { run(t, open(t)) })
	t.Run("over HTTP", func(t *testing.T) { run(t, open(t).overHTTP(t)) })
}

// wantCode checks that err is an API error with the code.
func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	var e smithy.APIError
	if !errors.As(err, &e) || e.ErrorCode() != code {
		t.Errorf("got error %v, want %s", err, code)
	}
}

func TestItemsComeBackAsTheyWerePut(t *testing.T) {
	eachTransport(t, func(t *testing.T, w *world) {
		w.create(t, "things")
		it := attrs{
			"pk": S("DEVICE#1"), "sk": S("TS#2026 \"é\"\n\u2028<&>"),
			"n":    N("12345678901234567890123456789012345678"),
			"bin":  &types.AttributeValueMemberB{Value: []byte{0, 1, 255}},
			"yes":  &types.AttributeValueMemberBOOL{Value: true},
			"no":   &types.AttributeValueMemberBOOL{Value: false},
			"null": &types.AttributeValueMemberNULL{Value: true},
			"list": L(N("1"), S("a"), M(attrs{"b": N("2")}), L([]types.AttributeValue{}...)),
			"map":  M(attrs{"x": S(""), "y": M(attrs{})}),
			"ss":   SS("a", "b"),
			"ns":   NS("-1", "2"),
			"bs":   &types.AttributeValueMemberBS{Value: [][]byte{{1}, {2}}},
		}
		w.put(t, "things", it)
		if got := w.get(t, "things", key("DEVICE#1", "TS#2026 \"é\"\n\u2028<&>")); !reflect.DeepEqual(got, it) {
			t.Errorf("got  %#v\nwant %#v", got, it)
		}
		if got := w.get(t, "things", key("DEVICE#1", "other")); got != nil {
			t.Errorf("an item that is not there came back as %v", got)
		}
	})
}

func TestNumbersComeBackInNormalForm(t *testing.T) {
	w := open(t)
	w.create(t, "things")
	it := key("a", "b")
	it["n"], it["set"] = N("+0021.500E1"), NS("1.0", "3e2")
	w.put(t, "things", it)
	got := w.get(t, "things", key("a", "b"))
	if !reflect.DeepEqual(got["n"], N("215")) || !reflect.DeepEqual(got["set"], NS("1", "300")) {
		t.Errorf("got %v and %v", got["n"], got["set"])
	}
}

func TestFailedConditionIsTyped(t *testing.T) {
	eachTransport(t, func(t *testing.T, w *world) {
		w.create(t, "things")
		it := key("a", "b")
		it["v"] = N("1")
		w.put(t, "things", it)
		_, err := w.db.PutItem(ctx, &dynamodb.PutItemInput{
			TableName: aws.String("things"), Item: key("a", "b"),
			ConditionExpression:                 aws.String("attribute_not_exists(pk)"),
			ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
		})
		var failed *types.ConditionalCheckFailedException
		if !errors.As(err, &failed) || !reflect.DeepEqual(failed.Item, it) {
			t.Fatalf("got %v with item %v", err, failed)
		}
		if got := w.get(t, "things", key("a", "b")); !reflect.DeepEqual(got, it) {
			t.Errorf("the item became %v", got)
		}
	})
}

func TestReturnValues(t *testing.T) {
	w := open(t)
	w.create(t, "things")
	update := func(want types.ReturnValue) attrs {
		t.Helper()
		out, err := w.db.UpdateItem(ctx, &dynamodb.UpdateItemInput{
			TableName: aws.String("things"), Key: key("a", "b"), ReturnValues: want,
			UpdateExpression:          aws.String("SET n = if_not_exists(n, :zero) + :one, m.x = :one REMOVE gone"),
			ExpressionAttributeValues: attrs{":zero": N("0"), ":one": N("1")},
		})
		if err != nil {
			t.Fatal(err)
		}
		return out.Attributes
	}
	reset := func() {
		it := key("a", "b")
		it["n"], it["gone"], it["m"] = N("5"), S("x"), M(attrs{"x": N("0"), "y": N("9")})
		w.put(t, "things", it)
	}
	for want, expect := range map[types.ReturnValue]attrs{
		types.ReturnValueNone:       nil,
		types.ReturnValueAllOld:     {"pk": S("a"), "sk": S("b"), "n": N("5"), "gone": S("x"), "m": M(attrs{"x": N("0"), "y": N("9")})},
		types.ReturnValueAllNew:     {"pk": S("a"), "sk": S("b"), "n": N("6"), "m": M(attrs{"x": N("1"), "y": N("9")})},
		types.ReturnValueUpdatedOld: {"n": N("5"), "gone": S("x"), "m": M(attrs{"x": N("0")})},
		types.ReturnValueUpdatedNew: {"n": N("6"), "m": M(attrs{"x": N("1")})},
	} {
		reset()
		if got := update(want); !reflect.DeepEqual(got, expect) {
			t.Errorf("%s: got %v", want, got)
		}
	}
	out, err := w.db.DeleteItem(ctx, &dynamodb.DeleteItemInput{TableName: aws.String("things"), Key: key("a", "b"), ReturnValues: types.ReturnValueAllOld})
	if err != nil || !reflect.DeepEqual(out.Attributes["n"], N("6")) {
		t.Errorf("delete returned %v, %v", out, err)
	}
	if got := w.get(t, "things", key("a", "b")); got != nil {
		t.Errorf("the item is still there: %v", got)
	}
}

func TestUpdateOfAMissingItemCreatesIt(t *testing.T) {
	w := open(t)
	w.create(t, "things")
	_, err := w.db.UpdateItem(ctx, &dynamodb.UpdateItemInput{TableName: aws.String("things"), Key: key("a", "b"),
		UpdateExpression: aws.String("ADD n :one"), ExpressionAttributeValues: attrs{":one": N("1")}})
	if err != nil {
		t.Fatal(err)
	}
	if got := w.get(t, "things", key("a", "b")); !reflect.DeepEqual(got, attrs{"pk": S("a"), "sk": S("b"), "n": N("1")}) {
		t.Errorf("got %v", got)
	}
}

func TestWrongItemsAreRefused(t *testing.T) {
	w := open(t)
	w.create(t, "things", withIndex("by-site", types.ProjectionTypeAll))
	big := key("a", "b")
	big["s"] = S(strings.Repeat("x", 400<<10))
	deep := N("1")
	for range 40 {
		deep = L(deep)
	}
	for name, it := range map[string]attrs{
		"empty key":            key("", "b"),
		"empty sort key":       key("a", ""),
		"missing sort key":     {"pk": S("a")},
		"key of other type":    {"pk": N("1"), "sk": S("b")},
		"long key":             key(strings.Repeat("x", 2049), "b"),
		"long sort key":        key("a", strings.Repeat("x", 1025)),
		"more than 400 KB":     big,
		"39 digits":            {"pk": S("a"), "sk": S("b"), "n": N(strings.Repeat("9", 39))},
		"no number":            {"pk": S("a"), "sk": S("b"), "n": N("NaN")},
		"empty set":            {"pk": S("a"), "sk": S("b"), "n": SS()},
		"duplicates in a set":  {"pk": S("a"), "sk": S("b"), "n": NS("1", "1.0")},
		"index key of a type":  {"pk": S("a"), "sk": S("b"), "site": N("1")},
		"empty index key":      {"pk": S("a"), "sk": S("b"), "site": S("")},
		"too many levels":      {"pk": S("a"), "sk": S("b"), "deep": deep},
		"empty attribute name": {"pk": S("a"), "sk": S("b"), "": S("x")},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.db.PutItem(ctx, &dynamodb.PutItemInput{TableName: aws.String("things"), Item: it})
			wantCode(t, err, "ValidationException")
		})
	}
	almost := key("a", "b")
	almost["s"] = S(strings.Repeat("x", 400<<10-len("pkaskb")-len("s")))
	w.put(t, "things", almost)
}

func TestWrongRequestsAreRefused(t *testing.T) {
	w := open(t)
	w.create(t, "things")
	name := aws.String("things")
	put := func(change func(*dynamodb.PutItemInput)) error {
		in := &dynamodb.PutItemInput{TableName: name, Item: key("a", "b")}
		change(in)
		_, err := w.db.PutItem(ctx, in)
		return err
	}
	wantCode(t, put(func(in *dynamodb.PutItemInput) { in.TableName = aws.String("nope") }), "ResourceNotFoundException")
	wantCode(t, put(func(in *dynamodb.PutItemInput) { in.ConditionExpression = aws.String("a = :x") }), "ValidationException")
	wantCode(t, put(func(in *dynamodb.PutItemInput) { in.ConditionExpression = aws.String("attribute_exists(#n)") }), "ValidationException")
	wantCode(t, put(func(in *dynamodb.PutItemInput) {
		in.ConditionExpression = aws.String("attribute_exists(pk)")
		in.ExpressionAttributeValues = attrs{":unused": N("1")}
	}), "ValidationException")
	wantCode(t, put(func(in *dynamodb.PutItemInput) { in.ReturnValues = types.ReturnValueAllNew }), "ValidationException")
	wantCode(t, put(func(in *dynamodb.PutItemInput) {
		in.Expected = map[string]types.ExpectedAttributeValue{"pk": {Exists: aws.Bool(false)}}
	}), "ValidationException")
	_, err := w.db.UpdateItem(ctx, &dynamodb.UpdateItemInput{TableName: name, Key: key("a", "b"),
		UpdateExpression: aws.String("SET sk = :x"), ExpressionAttributeValues: attrs{":x": S("c")}})
	wantCode(t, err, "ValidationException")
	_, err = w.db.GetItem(ctx, &dynamodb.GetItemInput{TableName: name, Key: attrs{"pk": S("a")}})
	wantCode(t, err, "ValidationException")
	_, err = w.db.ListBackups(ctx, &dynamodb.ListBackupsInput{})
	wantCode(t, err, "UnknownOperationException")
}

func withIndex(name string, p types.ProjectionType, include ...string) func(*dynamodb.CreateTableInput) {
	return func(in *dynamodb.CreateTableInput) {
		if len(in.AttributeDefinitions) == 2 {
			in.AttributeDefinitions = append(in.AttributeDefinitions,
				types.AttributeDefinition{AttributeName: aws.String("site"), AttributeType: types.ScalarAttributeTypeS},
				types.AttributeDefinition{AttributeName: aws.String("at"), AttributeType: types.ScalarAttributeTypeN})
		}
		in.GlobalSecondaryIndexes = append(in.GlobalSecondaryIndexes, types.GlobalSecondaryIndex{
			IndexName: aws.String(name),
			KeySchema: []types.KeySchemaElement{
				{AttributeName: aws.String("site"), KeyType: types.KeyTypeHash},
				{AttributeName: aws.String("at"), KeyType: types.KeyTypeRange},
			},
			Projection: &types.Projection{ProjectionType: p, NonKeyAttributes: include},
		})
	}
}

func TestTableLifecycle(t *testing.T) {
	eachTransport(t, func(t *testing.T, w *world) {
		w.create(t, "things", withIndex("by-site", types.ProjectionTypeInclude, "v"))
		_, err := w.db.CreateTable(ctx, &dynamodb.CreateTableInput{
			TableName: aws.String("things"), BillingMode: types.BillingModePayPerRequest,
			AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("pk"), AttributeType: types.ScalarAttributeTypeS}},
			KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("pk"), KeyType: types.KeyTypeHash}},
		})
		var inUse *types.ResourceInUseException
		if !errors.As(err, &inUse) {
			t.Errorf("creating it again: %v", err)
		}
		w.put(t, "things", key("a", "b"))
		if err := dynamodb.NewTableExistsWaiter(w.db).Wait(ctx, &dynamodb.DescribeTableInput{TableName: aws.String("things")}, time.Second); err != nil {
			t.Error(err)
		}
		out, err := w.db.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: aws.String("things")})
		if err != nil {
			t.Fatal(err)
		}
		d := out.Table
		if *d.ItemCount != 1 || *d.TableSizeBytes != 6 || d.TableStatus != types.TableStatusActive || d.LatestStreamArn == nil ||
			!d.CreationDateTime.Equal(start) || d.BillingModeSummary.BillingMode != types.BillingModePayPerRequest ||
			len(d.GlobalSecondaryIndexes) != 1 || d.GlobalSecondaryIndexes[0].Projection.NonKeyAttributes[0] != "v" ||
			*d.TableArn != "arn:aws:dynamodb:us-east-1:000000000000:table/things" {
			t.Errorf("description %+v", d)
		}
		list, err := w.db.ListTables(ctx, &dynamodb.ListTablesInput{})
		if err != nil || !reflect.DeepEqual(list.TableNames, []string{"things"}) {
			t.Errorf("tables %v, %v", list, err)
		}
		protect := func(on bool) {
			t.Helper()
			if _, err := w.db.UpdateTable(ctx, &dynamodb.UpdateTableInput{TableName: aws.String("things"), DeletionProtectionEnabled: &on}); err != nil {
				t.Fatal(err)
			}
		}
		protect(true)
		_, err = w.db.DeleteTable(ctx, &dynamodb.DeleteTableInput{TableName: aws.String("things")})
		wantCode(t, err, "ValidationException")
		protect(false)
		if _, err := w.db.DeleteTable(ctx, &dynamodb.DeleteTableInput{TableName: aws.String("things")}); err != nil {
			t.Fatal(err)
		}
		_, err = w.db.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: aws.String("things")})
		var gone *types.ResourceNotFoundException
		if !errors.As(err, &gone) {
			t.Errorf("describing it after deletion: %v", err)
		}
		w.create(t, "things")
		if got := w.get(t, "things", key("a", "b")); got != nil {
			t.Errorf("a new table of the name has the old table's item %v", got)
		}
	})
}

func TestWrongTablesAreRefused(t *testing.T) {
	w := open(t)
	for name, change := range map[string]func(*dynamodb.CreateTableInput){
		"unused attribute": func(in *dynamodb.CreateTableInput) {
			in.AttributeDefinitions = append(in.AttributeDefinitions, types.AttributeDefinition{AttributeName: aws.String("x"), AttributeType: "S"})
		},
		"undefined key": func(in *dynamodb.CreateTableInput) { in.KeySchema[1].AttributeName = aws.String("x") },
		"range first":   func(in *dynamodb.CreateTableInput) { in.KeySchema[0].KeyType = "RANGE" },
		"no throughput": func(in *dynamodb.CreateTableInput) { in.BillingMode = types.BillingModeProvisioned },
		"short name":    func(in *dynamodb.CreateTableInput) { in.TableName = aws.String("ab") },
		"bad view":      func(in *dynamodb.CreateTableInput) { in.StreamSpecification.StreamViewType = "NEWEST" },
		"list as key":   func(in *dynamodb.CreateTableInput) { in.AttributeDefinitions[0].AttributeType = "L" },
		"local index": func(in *dynamodb.CreateTableInput) {
			in.LocalSecondaryIndexes = []types.LocalSecondaryIndex{{IndexName: aws.String("loc"), KeySchema: in.KeySchema, Projection: &types.Projection{}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := &dynamodb.CreateTableInput{
				TableName: aws.String("things"), BillingMode: types.BillingModePayPerRequest,
				AttributeDefinitions: []types.AttributeDefinition{
					{AttributeName: aws.String("pk"), AttributeType: "S"}, {AttributeName: aws.String("sk"), AttributeType: "S"}},
				KeySchema: []types.KeySchemaElement{
					{AttributeName: aws.String("pk"), KeyType: "HASH"}, {AttributeName: aws.String("sk"), KeyType: "RANGE"}},
				StreamSpecification: &types.StreamSpecification{StreamEnabled: aws.Bool(true), StreamViewType: types.StreamViewTypeNewImage},
			}
			change(in)
			_, err := w.db.CreateTable(ctx, in)
			wantCode(t, err, "ValidationException")
		})
	}
}

func TestConsumedCapacityFollowsSize(t *testing.T) {
	w := open(t)
	w.create(t, "things")
	it := key("a", "b")
	it["s"] = S(strings.Repeat("x", 9000))
	put, err := w.db.PutItem(ctx, &dynamodb.PutItemInput{TableName: aws.String("things"), Item: it, ReturnConsumedCapacity: "TOTAL"})
	if err != nil || *put.ConsumedCapacity.CapacityUnits != 9 {
		t.Errorf("put %v, %v", put, err)
	}
	get, err := w.db.GetItem(ctx, &dynamodb.GetItemInput{TableName: aws.String("things"), Key: key("a", "b"), ReturnConsumedCapacity: "TOTAL"})
	if err != nil || *get.ConsumedCapacity.CapacityUnits != 1.5 {
		t.Errorf("get %v, %v", get, err)
	}
}

func TestBatches(t *testing.T) {
	eachTransport(t, func(t *testing.T, w *world) {
		w.create(t, "one")
		w.create(t, "two")
		var reqs []types.WriteRequest
		for i := range 24 {
			reqs = append(reqs, types.WriteRequest{PutRequest: &types.PutRequest{Item: key("a", fmt.Sprint(i))}})
		}
		w.put(t, "two", key("x", "y"))
		out, err := w.db.BatchWriteItem(ctx, &dynamodb.BatchWriteItemInput{RequestItems: map[string][]types.WriteRequest{
			"one": reqs, "two": {{DeleteRequest: &types.DeleteRequest{Key: key("x", "y")}}}}})
		if err != nil || len(out.UnprocessedItems) != 0 {
			t.Fatalf("%v, %v", out, err)
		}
		got, err := w.db.BatchGetItem(ctx, &dynamodb.BatchGetItemInput{RequestItems: map[string]types.KeysAndAttributes{
			"one": {Keys: []attrs{key("a", "3"), key("a", "23"), key("a", "24")}, ProjectionExpression: aws.String("sk")},
			"two": {Keys: []attrs{key("x", "y")}}}})
		if err != nil || !reflect.DeepEqual(got.Responses["one"], []attrs{{"sk": S("3")}, {"sk": S("23")}}) || len(got.Responses["two"]) != 0 {
			t.Errorf("got %v, %v", got, err)
		}
		_, err = w.db.BatchWriteItem(ctx, &dynamodb.BatchWriteItemInput{RequestItems: map[string][]types.WriteRequest{"one": append(reqs, reqs[0])}})
		wantCode(t, err, "ValidationException")
	})
}

func TestTransactionAppliesAllOrNothing(t *testing.T) {
	eachTransport(t, func(t *testing.T, w *world) {
		w.create(t, "things")
		it := key("a", "1")
		it["n"] = N("1")
		w.put(t, "things", it)
		w.put(t, "things", key("a", "3"))
		items := func(version string) []types.TransactWriteItem {
			return []types.TransactWriteItem{
				{Update: &types.Update{TableName: aws.String("things"), Key: key("a", "1"),
					UpdateExpression: aws.String("SET n = n + :one"), ConditionExpression: aws.String("n = :v"),
					ExpressionAttributeValues:           attrs{":one": N("1"), ":v": N(version)},
					ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld}},
				{Put: &types.Put{TableName: aws.String("things"), Item: key("a", "2"), ConditionExpression: aws.String("attribute_not_exists(pk)")}},
				{Delete: &types.Delete{TableName: aws.String("things"), Key: key("a", "3")}},
				{ConditionCheck: &types.ConditionCheck{TableName: aws.String("things"), Key: key("a", "4"), ConditionExpression: aws.String("attribute_not_exists(pk)")}},
			}
		}
		_, err := w.db.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: items("7")})
		var cancelled *types.TransactionCanceledException
		if !errors.As(err, &cancelled) {
			t.Fatalf("got %v", err)
		}
		var codes []string
		for _, r := range cancelled.CancellationReasons {
			codes = append(codes, *r.Code)
		}
		if !reflect.DeepEqual(codes, []string{"ConditionalCheckFailed", "None", "None", "None"}) || !reflect.DeepEqual(cancelled.CancellationReasons[0].Item, it) {
			t.Errorf("reasons %v, item %v", codes, cancelled.CancellationReasons[0].Item)
		}
		if w.get(t, "things", key("a", "2")) != nil || w.get(t, "things", key("a", "3")) == nil {
			t.Error("a cancelled transaction left something behind")
		}
		if _, err := w.db.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: items("1")}); err != nil {
			t.Fatal(err)
		}
		got, err := w.db.TransactGetItems(ctx, &dynamodb.TransactGetItemsInput{TransactItems: []types.TransactGetItem{
			{Get: &types.Get{TableName: aws.String("things"), Key: key("a", "1"), ProjectionExpression: aws.String("n")}},
			{Get: &types.Get{TableName: aws.String("things"), Key: key("a", "2")}},
			{Get: &types.Get{TableName: aws.String("things"), Key: key("a", "3")}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		want := []types.ItemResponse{{Item: attrs{"n": N("2")}}, {Item: key("a", "2")}, {}}
		if !reflect.DeepEqual(got.Responses, want) {
			t.Errorf("got %v", got.Responses)
		}
	})
}

func TestTransactionLimits(t *testing.T) {
	w := open(t)
	w.create(t, "things")
	put := func(it attrs) types.TransactWriteItem {
		return types.TransactWriteItem{Put: &types.Put{TableName: aws.String("things"), Item: it}}
	}
	try := func(items ...types.TransactWriteItem) error {
		_, err := w.db.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: items})
		return err
	}
	wantCode(t, try(put(key("a", "b")), put(key("a", "b"))), "ValidationException")
	var many, large []types.TransactWriteItem
	for i := range 101 {
		many = append(many, put(key("a", fmt.Sprint(i))))
	}
	for i := range 11 {
		it := key("b", fmt.Sprint(i))
		it["s"] = S(strings.Repeat("x", 390<<10))
		large = append(large, put(it))
	}
	wantCode(t, try(many...), "ValidationException")
	wantCode(t, try(large...), "ValidationException")
	if err := try(many[:100]...); err != nil {
		t.Error(err)
	}
	if err := try(large[:10]...); err != nil {
		t.Error(err)
	}
}

func TestTransactionReportsAWrongOperandAsAReason(t *testing.T) {
	w := open(t)
	w.create(t, "things")
	it := key("a", "b")
	it["s"] = S("text")
	w.put(t, "things", it)
	_, err := w.db.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
		{Put: &types.Put{TableName: aws.String("things"), Item: key("a", "c")}},
		{Update: &types.Update{TableName: aws.String("things"), Key: key("a", "b"), UpdateExpression: aws.String("ADD s :one"),
			ExpressionAttributeValues: attrs{":one": N("1")}}}}})
	var cancelled *types.TransactionCanceledException
	if !errors.As(err, &cancelled) || *cancelled.CancellationReasons[1].Code != "ValidationError" {
		t.Errorf("got %v", err)
	}
	if got := w.get(t, "things", key("a", "c")); got != nil {
		t.Errorf("a cancelled transaction left %v", got)
	}
}

func TestTransactionTokenMakesARepeatHarmless(t *testing.T) {
	w := open(t)
	w.create(t, "things")
	add := func(token, n string) error {
		_, err := w.db.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{ClientRequestToken: &token, TransactItems: []types.TransactWriteItem{
			{Update: &types.Update{TableName: aws.String("things"), Key: key("a", "b"), UpdateExpression: aws.String("ADD n :n SET a = :a, b = :b, c = :c"),
				ExpressionAttributeValues: attrs{":n": N(n), ":a": S("a"), ":b": S("b"), ":c": S("c")}}}}})
		return err
	}
	for range 9 { // the SDK writes maps in another order each time
		if err := add("t", "1"); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.get(t, "things", key("a", "b"))["n"]; !reflect.DeepEqual(got, N("1")) {
		t.Errorf("nine times the same token gave %v", got)
	}
	var mismatch *types.IdempotentParameterMismatchException
	if err := add("t", "2"); !errors.As(err, &mismatch) {
		t.Errorf("another request with the token: %v", err)
	}
	w.clock.Advance(10 * time.Minute)
	if err := add("t", "2"); err != nil {
		t.Error(err)
	}
	if got := w.get(t, "things", key("a", "b"))["n"]; !reflect.DeepEqual(got, N("3")) {
		t.Errorf("a token older than ten minutes gave %v", got)
	}
}

// Money moves between accounts in overlapping transactions while others read all of them:
// the sum never changes.
func TestOverlappingTransactionsAreSerial(t *testing.T) {
	w := open(t)
	w.create(t, "accounts")
	const accounts, workers, moves = 5, 8, 60
	for i := range accounts {
		it := key("acct", fmt.Sprint(i))
		it["n"] = N("100")
		w.put(t, "accounts", it)
	}
	move := func(account int, n string) types.TransactWriteItem {
		return types.TransactWriteItem{Update: &types.Update{TableName: aws.String("accounts"), Key: key("acct", fmt.Sprint(account)),
			UpdateExpression: aws.String("SET n = n + :n"), ConditionExpression: aws.String("n >= :min"),
			ExpressionAttributeValues: attrs{":n": N(n), ":min": N("1")}}}
	}
	total := func() int {
		in := &dynamodb.TransactGetItemsInput{}
		for i := range accounts {
			in.TransactItems = append(in.TransactItems, types.TransactGetItem{Get: &types.Get{TableName: aws.String("accounts"), Key: key("acct", fmt.Sprint(i))}})
		}
		out, err := w.db.TransactGetItems(ctx, in)
		if err != nil {
			t.Error(err)
			return 0
		}
		sum := 0
		for _, r := range out.Responses {
			var n int
			fmt.Sscan(r.Item["n"].(*types.AttributeValueMemberN).Value, &n)
			sum += n
		}
		return sum
	}
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			for j := range moves {
				from := (i + j) % accounts
				to := (from + 1 + j%(accounts-1)) % accounts
				_, err := w.db.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{move(from, "-1"), move(to, "1")}})
				var cancelled *types.TransactionCanceledException
				if err != nil && !errors.As(err, &cancelled) {
					t.Error(err)
				}
				if got := total(); got != accounts*100 {
					t.Errorf("a reader saw a sum of %d", got)
				}
			}
		})
	}
	wg.Wait()
	if got := total(); got != accounts*100 {
		t.Errorf("the sum is %d at the end", got)
	}
}

func TestConcurrentConditionalPutsHaveOneWinner(t *testing.T) {
	w := open(t)
	w.create(t, "things")
	var wg sync.WaitGroup
	won := make(chan int, 100)
	for i := range 10 {
		wg.Go(func() {
			for j := range 10 {
				_, err := w.db.PutItem(ctx, &dynamodb.PutItemInput{TableName: aws.String("things"), Item: key("a", fmt.Sprint(j)),
					ConditionExpression: aws.String("attribute_not_exists(pk)")})
				if err == nil {
					won <- i
				}
			}
		})
	}
	wg.Wait()
	if n := len(won); n != 10 {
		t.Errorf("%d puts won for 10 keys", n)
	}
}

func TestSameSeedAndCallsGiveSameBytes(t *testing.T) {
	run := func(seed uint64) string {
		w := open(t, func(o *testenv.Options) { o.Seed = seed })
		w.create(t, "things")
		for i := range 20 {
			w.put(t, "things", key(fmt.Sprint(i), "x"))
		}
		if err := w.env.Reshard("things"); err != nil {
			t.Fatal(err)
		}
		return strings.Join(w.drain(t, "things"), "\n")
	}
	first := run(7)
	if again := run(7); again != first {
		t.Error("the same seed gave other bytes")
	}
	if first == run(8) {
		t.Error("another seed gave the same bytes")
	}
}

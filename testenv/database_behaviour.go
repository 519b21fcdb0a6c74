package testenv

import (
	"slices"
	"sync"
)

// DynamoDBBehaviour is what DynamoDB is free to do and a test wants to choose. Its functions are
// called one at a time and must not call the Env.
type DynamoDBBehaviour struct {
	// Unprocessed is asked for each item of a BatchWriteItem or BatchGetItem; true: it is
	// throttled and comes back among UnprocessedItems or UnprocessedKeys. When that is so for
	// all items of a request, it fails with ProvisionedThroughputExceededException, as the
	// service's documentation of both operations says. Nil: none is.
	Unprocessed func() bool
	// Cancel is asked for each item of a TransactWriteItems and gives the reason for which the
	// service cancels it: TransactionConflict, ProvisionedThroughputExceeded or
	// ThrottlingError; empty: none. Nil: no transaction is cancelled but for its conditions.
	Cancel func() string
}

// choose calls a function of a behaviour, one at a time, and is the zero value's for nil.
func choose[T any](mu *sync.Mutex, f func() T) (v T) {
	if f == nil {
		return v
	}
	mu.Lock()
	defer mu.Unlock()
	return f()
}

// cancels returns the reasons for which Cancel wants a transaction of n items cancelled, nil for
// none.
func (db *database) cancels(n int) []*apiError {
	if db.opt.DynamoDB.Cancel == nil {
		return nil
	}
	reasons := make([]*apiError, n)
	for i := range reasons {
		if code := choose(&db.choosing, db.opt.DynamoDB.Cancel); code != "" {
			reasons[i] = &apiError{code: code, message: cancelMessages[code]}
		}
	}
	if !slices.ContainsFunc(reasons, func(e *apiError) bool { return e != nil }) {
		return nil
	}
	return reasons
}

// cancelMessages are the messages of cancellation reasons in TransactWriteItems' documentation.
var cancelMessages = map[string]string{
	"TransactionConflict":           "Transaction is ongoing for the item.",
	"ProvisionedThroughputExceeded": "The level of configured provisioned throughput for the table was exceeded. Consider increasing your provisioning level with the UpdateTable API.",
	"ThrottlingError":               "Throughput exceeds the current throughput limit for your table or index.",
}

var errThroughput = failure("ProvisionedThroughputExceededException",
	"The level of configured provisioned throughput for the table was exceeded. Consider increasing your provisioning level with the UpdateTable API.")

// throttled says by place which of a batch's n items are throttled.
func (db *database) throttled(n int) map[int]bool {
	if db.opt.DynamoDB.Unprocessed == nil {
		return nil
	}
	which := map[int]bool{}
	for i := range n {
		if choose(&db.choosing, db.opt.DynamoDB.Unprocessed) {
			which[i] = true
		}
	}
	return which
}

// unwritten repeats the requests of a BatchWriteItem that were throttled, by table.
func unwritten(tables *node, throttled map[int]bool) []byte {
	var o jsonObject
	n := 0
	for i := range tables.kids {
		var list [][]byte
		for j := range tables.kids[i].kids {
			if throttled[n] {
				list = append(list, tables.kids[i].kids[j].appendCanonical(nil))
			}
			n++
		}
		if len(list) > 0 {
			o.raw(tables.kids[i].name, appendArray(nil, list))
		}
	}
	return o.done()
}

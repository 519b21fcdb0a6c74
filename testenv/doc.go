// Package testenv is an embedded AWS: one account in one region with DynamoDB, DynamoDB
// Streams, Amazon Data Firehose and S3, in one process and without Docker. It knows AWS
// and nothing of the programs that use it. Its one rule: where it does not do what the
// service does, it refuses the request or says so here; it never answers differently in
// silence.
//
// Unchanged AWS SDK clients use it in two ways, which behave alike:
//
//	env, err := testenv.Open(testenv.Options{Dir: dir})
//	db := dynamodb.NewFromConfig(env.AWSConfig())   // in process, no sockets
//	env.Serve(ctx, listener)                        // AWS_ENDPOINT_URL=http://127.0.0.1:port
//
// The in-process transport runs the handlers in the caller's goroutine and starts none,
// so it works inside a testing/synctest bubble. All time comes from one Clock: with a
// ManualClock a day of retention passes in a call. All ids come from one seed: the same
// calls in the same order give the same bytes.
//
// # DynamoDB
//
// CreateTable, DescribeTable, ListTables, DeleteTable, UpdateTable (stream,
// billing, deletion protection), UpdateTimeToLive, DescribeTimeToLive; PutItem, UpdateItem, DeleteItem, GetItem,
// BatchWriteItem, BatchGetItem, Query, Scan, TransactWriteItems, TransactGetItems, with
// condition, update, filter, key condition and projection expressions. Numbers are
// decimals of 38 digits and come back in the service's normal form; items are limited
// to 400 KB, pages to 1 MB, transactions to 100 items and 4 MB, and client request
// tokens hold for ten minutes.
//
// Tables are active at once. Reads see everything written before them, also on
// indexes. Each page of a Query or Scan is one state of the table. A transaction locks
// the items it touches and no others; where the service cancels one of two that meet,
// here the later waits. Items live in memory, or on disk, as encoded bytes.
//
// Not there: local secondary indexes, changes of global ones, the legacy parameters
// (Expected, KeyConditions, …), PartiQL, backups and exports, global tables, throttling by
// capacity (DynamoDBBehaviour and Options.Fault throttle when a test wants it). Tags,
// encryption, table class and warm throughput are accepted and forgotten. The bounds
// of BETWEEN must be values or top-level attributes; an arithmetic result of more than 38
// digits is refused.
//
// # Streams
//
// ListStreams, DescribeStream (100 shards a page, CHILD_SHARDS), GetShardIterator (all
// four types), GetRecords (1,000 records or 1 MB). A stream starts with several open
// shards; a shard closes after its life, or when Reshard or SplitShard splits it, and its
// children follow. A shard's last page is the one without a next iterator. Iterators
// expire after 15 minutes; records are trimmed after 24 hours, looked for once a minute
// of the clock, and a closed shard leaves the listing with them. Within one second of the
// clock records have the same ApproximateCreationDateTime, as the service rounds it.
// SweepTTL deletes expired items with the service's identity; nothing expires without it.
//
// The other times at which the service is free to act are a test's to choose: pages that are
// empty although records follow, children that appear late, listings that leave shards out or
// name children before their parents (StreamsBehaviour), retention (StreamRetention,
// TrimStream), thousands of closed shards (RotateShards).
//
// Not there: at most two readers of a shard, a TRIM_HORIZON iterator whose first record is
// trimmed before it is used fails (here it begins with the oldest record there is).
//
// # Firehose and S3
//
// Firehose joins the payloads of records without a delimiter and delivers them by its
// buffering hints to S3, whose objects are files under Options.Dir. What it does and does
// not, with the source of each, is a table in firehose.go; FirehoseBehaviour has what the
// service is free to do: any grouping and order, copies, late deliveries, throttling, failed
// entries. FirehoseMetrics has what CloudWatch would show.
//
// # Faults
//
// Options.Fault lets any request of any service fail: with an error of the service, or without
// an answer, before or after it was carried out. SeededFaults, SeededStreams and
// SeededFirehose are behaviours that a seed decides. All faults are off by default.
//
// Every answer has a Date header by the Clock, in whole seconds as the services send it.
//
// # On disk
//
// With Options.Durable everything is under Dir: the objects in s3 and s3-meta, all else in
// the key-value store db. What was acknowledged, and what was read, is there after the
// process was killed at any moment; with Options.Sync after a power cut too. An Env opened
// on the folder goes on: with the same tables, records, iterators and request tokens, with
// new ids and higher sequence numbers, and with Firehose's buffers, each of which is
// delivered under a name that is stored first. A buffer is delivered twice only if its
// object was removed in the moment between its appearing and the kill. Parts of
// multipart uploads are kept as well; that is no promise. The memory it takes depends on
// Options.CacheBytes and on what Firehose has not delivered, not on the number of items.
//
// When the disk is full, what writes is refused (InternalServerError, InternalFailure or
// InternalError, status 500) and what reads is answered; nothing acknowledged is lost, and
// when there is space again it goes on by itself: it looks a few times a second. For that it
// sets 32 MiB aside in the file db-reserve. Should another process take those too, requests
// wait instead. Deleting objects makes room at once; deleting items is refused like all that
// writes. A disk that fails otherwise (EIO) ends the store: every request fails, Run
// returns, or the process ends with a message, and the next process recovers it.
//
// Run and Serve are for an Env that is a process of its own: they make time pass and
// answer over HTTP, on loopback only.
package testenv

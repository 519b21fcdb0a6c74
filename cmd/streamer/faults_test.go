package main

import (
	"net"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/firehose"
	fhtypes "github.com/aws/aws-sdk-go-v2/service/firehose/types"
)

var (
	notAllowed = refusal{400, "AccessDeniedException", "User: arn:aws:iam::000000000000:user/me is not authorized to perform this"}
	noAccess   = refusal{403, "AccessDenied", "Access Denied"} // as S3 says it
	noSpace    = refusal{500, "InternalServerError", "no space left on device"}
)

// A mistake is one that only a person can put right, or a failure that starting again may
// outlive, and what a command says of it.
type mistake struct {
	name string
	make func(t *testing.T, d *door)
	args []string
	code int
	want []string
}

func shut(op string, no refusal) func(*testing.T, *door) {
	return func(_ *testing.T, d *door) { d.shut(op, no) }
}

func setenv(name, value string) func(*testing.T, *door) {
	return func(t *testing.T, _ *door) { t.Setenv(name, value) }
}

// tableWith makes a table with a stream of that view, or without one.
func tableWith(name string, view types.StreamViewType) func(*testing.T, *door) {
	return func(t *testing.T, d *door) {
		in := &dynamodb.CreateTableInput{
			TableName: &name, BillingMode: types.BillingModePayPerRequest,
			AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("pk"), AttributeType: "S"}, {AttributeName: aws.String("sk"), AttributeType: "S"}},
			KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("pk"), KeyType: "HASH"}, {AttributeName: aws.String("sk"), KeyType: "RANGE"}},
		}
		if view != "" {
			in.StreamSpecification = &types.StreamSpecification{StreamEnabled: aws.Bool(true), StreamViewType: view}
		}
		if _, err := d.dynamodb.CreateTable(t.Context(), in); err != nil {
			t.Fatal(err)
		}
	}
}

// delivery makes a delivery stream that is like the one of local but for a change.
func delivery(name string, change func(*fhtypes.ExtendedS3DestinationConfiguration)) func(*testing.T, *door) {
	return func(t *testing.T, d *door) {
		to := &fhtypes.ExtendedS3DestinationConfiguration{
			BucketARN: aws.String("arn:aws:s3:::" + stagingBucket), RoleARN: aws.String("arn:aws:iam::000000000000:role/telemetry-delivery"),
			Prefix: aws.String(partsPrefix + "sensor_readings/"), CompressionFormat: fhtypes.CompressionFormatUncompressed,
		}
		change(to)
		_, err := d.firehose.CreateDeliveryStream(t.Context(), &firehose.CreateDeliveryStreamInput{
			DeliveryStreamName: &name, DeliveryStreamType: fhtypes.DeliveryStreamTypeDirectPut, ExtendedS3DestinationConfiguration: to,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhatKeepsACommandFromStartingIsOneClearLine(t *testing.T) {
	none := func(*testing.T, *door) {}
	run := func(more ...string) []string { return append([]string{"run"}, more...) }
	tests := []mistake{
		{"unreachable endpoint", setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1"), run(), exitFailed, []string{"sensor_readings", "cannot connect", "AWS_ENDPOINT_URL"}},
		{"staging that is no place", none, run("--staging", "here"), exitUsage, []string{`"here"`, "s3://"}},
		{"no region", func(t *testing.T, _ *door) {
			t.Setenv("AWS_REGION", "")
			t.Setenv("AWS_DEFAULT_REGION", "")
		}, run(), exitUsage, []string{"AWS_REGION"}},
		{"missing table", none, run("--table", "nowhere"), exitPerson, []string{"nowhere", "us-east-1", "AWS_REGION"}},
		{"wrong region", func(t *testing.T, d *door) {
			t.Setenv("AWS_REGION", "eu-north-1")
			d.shut("DescribeTable", refusal{400, "ResourceNotFoundException", "Requested resource not found: Table: sensor_readings not found"})
		}, run(), exitPerson, []string{"sensor_readings", "eu-north-1", "AWS_REGION"}},
		{"table without a stream", tableWith("still", ""), run("--table", "still"), exitPerson, []string{"still", "no stream", "NEW_IMAGE"}},
		{"stream of keys", tableWith("keys", types.StreamViewTypeKeysOnly), run("--table", "keys"), exitPerson, []string{"keys", "KEYS_ONLY", "NEW_IMAGE"}},
		{"status of a table without a stream", tableWith("still", ""), []string{"status", "--table", "still"}, exitPerson, []string{"still", "NEW_IMAGE"}},
		{"missing staging bucket", none, run("--staging", "s3://nowhere/parts/"), exitPerson, []string{"--staging", "s3://nowhere/parts/"}},
		{"missing lake bucket", none, run("--lake", "s3://nowhere/"), exitPerson, []string{"--lake", "s3://nowhere/"}},
		{"seal without a bucket", none, []string{"seal", "--staging", "s3://nowhere/parts/"}, exitPerson, []string{"s3://nowhere/parts/"}},
		{"lake in staging", none, run("--lake", "s3://"+stagingBucket+"/"+partsPrefix+"lake/"), exitUsage, []string{"overlap", "--lake", "--staging"}},
		{"staging in the lake", none, run("--lake", "s3://"+stagingBucket+"/"), exitUsage, []string{"overlap"}},
		{"missing delivery stream", none, run("--delivery-stream", "nowhere"), exitPerson, []string{"nowhere"}},
		{"delivery that compresses", delivery("zipped", func(c *fhtypes.ExtendedS3DestinationConfiguration) {
			c.CompressionFormat = fhtypes.CompressionFormatGzip
		}), run("--delivery-stream", "zipped"), exitPerson, []string{"zipped", "GZIP", "UNCOMPRESSED"}},
		{"delivery with processors", delivery("processed", func(c *fhtypes.ExtendedS3DestinationConfiguration) {
			c.ProcessingConfiguration = &fhtypes.ProcessingConfiguration{Enabled: aws.Bool(true), Processors: []fhtypes.Processor{{Type: fhtypes.ProcessorTypeAppendDelimiterToRecord}}}
		}), run("--delivery-stream", "processed"), exitPerson, []string{"processed", "ProcessingConfiguration"}},
		{"table not to be looked at", shut("DescribeTable", notAllowed), run(), exitPerson, []string{"sensor_readings", "DescribeTable", "policy"}},
		{"staging not to be looked at", shut("ListObjectsV2", noAccess), run(), exitPerson, []string{"ListObjectsV2", "policy"}},
		{"delivery stream not to be looked at", shut("DescribeDeliveryStream", notAllowed), run(), exitPerson, []string{"DescribeDeliveryStream", "policy"}},
		{"checkpoint not to be written", shut("UpdateItem", notAllowed), run(), exitPerson, []string{"run-sensor_readings", "UpdateItem", "policy"}},
		{"stream not to be described", shut("DescribeStream", notAllowed), run(), exitPerson, []string{"DescribeStream", "policy"}},
		{"expired credentials", shut("DescribeTable", refusal{400, "ExpiredTokenException", "The security token included in the request is expired"}), run(), exitPerson, []string{"DescribeTable", "AWS_PROFILE"}},
		{"load into no table", none, []string{"load", "FILE", "--format", "room-climate", "--table", "nowhere"}, exitPerson, []string{"nowhere", "AWS_REGION"}},
		{"load without an endpoint", setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1"), []string{"load", "FILE", "--format", "room-climate"}, exitFailed, []string{"cannot connect", "AWS_ENDPOINT_URL"}},
	}
	file := writeLines(t, climateLines(1)...)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := openDoor(t)
			tt.make(t, d)
			for i := range tt.args {
				if tt.args[i] == "FILE" {
					tt.args[i] = file
				}
			}
			c := begin(t, tt.args...)
			c.exits(tt.code)
			words := c.lastWords()
			t.Log(words)
			if c.stdout.String() != "" {
				t.Errorf("stdout has %q", &c.stdout)
			}
			for _, want := range tt.want {
				if !strings.Contains(words, want) {
					t.Errorf("%q does not say %q", words, want)
				}
			}
		})
	}
}

func TestAMissingPermissionEndsWhatMetIt(t *testing.T) {
	file := roomClimate(t, 20)
	for op, no := range map[string]refusal{
		"GetShardIterator": notAllowed, "GetRecords": notAllowed, "TransactWriteItems": notAllowed, "PutRecordBatch": notAllowed,
		"GetObject": noAccess, "PutObject": noAccess, "DeleteObject": noAccess,
	} {
		t.Run(op, func(t *testing.T) {
			d := openDoor(t)
			d.load(file)
			d.shut(op, no)
			c := begin(t, "run")
			c.exits(exitPerson)
			if words := c.lastWords(); !strings.Contains(words, op) || !strings.Contains(words, "policy") {
				t.Errorf("the run ends with %q", words)
			} else {
				t.Log(words)
			}
			d.open()
			again := begin(t, "run")
			d.sealed(file)
			again.stop()
			again.exits(exitOK)
			checkReadings(t, d.dir, file)
		})
	}
	d := openDoor(t)
	d.shut("PutItem", notAllowed)
	load := begin(t, "load", file.name, "--format", "room-climate", "-o", "json")
	load.exits(exitPerson)
	if words := load.lastWords(); !strings.Contains(words, "PutItem") || !strings.Contains(words, "policy") {
		t.Errorf("the load ends with %q", words)
	}
}

// A full disk of the embedded AWS is a 500 of what writes, and so is a bad hour of the real one.
func TestRunGoesOnAfterTheServiceFailedForAWhile(t *testing.T) {
	file := roomClimate(t, 300)
	tests := []struct {
		op string
		no refusal
	}{
		{"PutObject", noSpace},
		{"PutObject", refusal{503, "SlowDown", "Please reduce your request rate."}},
		{"PutRecordBatch", refusal{500, "InternalFailure", "no space left on device"}},
		{"TransactWriteItems", noSpace},
		{"UpdateItem", noSpace},
		{"GetRecords", noSpace},
	}
	for _, tt := range tests {
		t.Run(tt.op+" "+tt.no.code, func(t *testing.T) {
			d := openDoor(t)
			c := begin(t, "run")
			until(t, "the run has begun", func() bool { return d.status().Lane.Started })
			d.shut(tt.op, tt.no)
			d.load(file)
			until(t, "two attempts are refused", func() bool { return d.refusals(tt.op) >= 2 })
			until(t, "the log tells of it", func() bool {
				log := c.stderr.String()
				return strings.Contains(log, "level=WARN") && strings.Contains(log, tt.op) && strings.Contains(log, tt.no.code)
			})
			d.open()
			d.sealed(file)
			c.stop()
			c.exits(exitOK)
			for line := range strings.Lines(c.stderr.String()) {
				if !strings.Contains(line, "level=WARN") {
					t.Errorf("the run says %s", line)
				}
			}
			t.Log(c.stderr.String())
			checkReadings(t, d.dir, file)
		})
	}
}

func TestARunThatTakesOverEndsTheOther(t *testing.T) {
	file := roomClimate(t, 400)
	d := openDoor(t)
	half := &climateFile{name: writeLines(t, file.lines[:200]...), lines: file.lines[:200]}
	first := begin(t, "run")
	d.load(half)
	d.sealed(half)
	second := begin(t, "run", "--take-over")
	token := func() string {
		item := d.item(t, "lane#run-sensor_readings", "lane")
		return item["token"].(*types.AttributeValueMemberN).Value
	}
	until(t, "the second run has the lane", func() bool { return token() == "2" })
	d.load(file)
	first.exits(exitPerson)
	words := first.lastWords()
	if !strings.Contains(words, "another process") || !strings.Contains(words, "run-sensor_readings") || !strings.Contains(words, "stop one of the two") {
		t.Errorf("the first run ends with %q", words)
	}
	t.Log(words)
	d.sealed(file)
	second.stop()
	second.exits(exitOK)
	if text := second.stderr.String(); strings.Contains(text, "streamer:") {
		t.Errorf("the second run ends with %q", text)
	}
	checkReadings(t, d.dir, file)
}

// item is an item of the checkpoint table.
func (d *door) item(t *testing.T, pk, sk string) map[string]types.AttributeValue {
	t.Helper()
	out, err := d.dynamodb.GetItem(t.Context(), &dynamodb.GetItemInput{TableName: aws.String(checkpointTable), ConsistentRead: aws.Bool(true), Key: checkpointKey(pk, sk)})
	if err != nil {
		t.Fatal(err)
	}
	if out.Item == nil {
		t.Fatalf("no item %s %s", pk, sk)
	}
	return out.Item
}

func checkpointKey(pk, sk string) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{"pk": &types.AttributeValueMemberS{Value: pk}, "sk": &types.AttributeValueMemberS{Value: sk}}
}

// mark sets an attribute of the items whose sort key begins so, and returns how many they are.
func (d *door) mark(t *testing.T, sk, attribute string, value types.AttributeValue) (items int) {
	t.Helper()
	out, err := d.dynamodb.Scan(t.Context(), &dynamodb.ScanInput{TableName: aws.String(checkpointTable)})
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range out.Items {
		if at := item["sk"].(*types.AttributeValueMemberS).Value; strings.HasPrefix(at, sk) {
			items++
			item[attribute] = value
			if _, err := d.dynamodb.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: aws.String(checkpointTable), Item: item}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return items
}

func TestANewerFormatAsksForAnUpgrade(t *testing.T) {
	file := roomClimate(t, 20)
	for _, tt := range []struct {
		item string
		args []string
	}{
		{"lane", []string{"run"}},
		{"lane", []string{"status"}},
		{"window#", []string{"run"}},
		{"window#", []string{"status"}},
		{"shard#", []string{"run"}},
		{"shard#", []string{"status"}},
		{"contract", []string{"run"}},
	} {
		t.Run(tt.item+" "+tt.args[0], func(t *testing.T) {
			d := openDoor(t)
			d.load(file)
			// Parts that cannot be put leave a window pending: the next run reads all of these.
			d.shut("PutRecordBatch", notAllowed)
			c := begin(t, "run")
			c.exits(exitPerson)
			d.open()
			if d.mark(t, tt.item, "fmt", &types.AttributeValueMemberN{Value: "2"}) == 0 {
				t.Fatalf("no item %s", tt.item)
			}
			c = begin(t, tt.args...)
			c.exits(exitPerson)
			words := c.lastWords()
			for _, want := range []string{tt.item, "format 2", "upgrade"} {
				if !strings.Contains(words, want) {
					t.Errorf("%q does not say %q", words, want)
				}
			}
			t.Log(words)
			d.mark(t, tt.item, "fmt", &types.AttributeValueMemberN{Value: "1"})
			c = begin(t, "run")
			d.sealed(file)
			c.stop()
			c.exits(exitOK)
			checkReadings(t, d.dir, file)
		})
	}
}

func TestSealStopsAtANewerFormat(t *testing.T) {
	file := roomClimate(t, 20)
	d := openDoor(t)
	d.load(file)
	d.shut("GetObject", noAccess) // delivered, and not sealed
	c := begin(t, "run")
	until(t, "a part is in staging", func() bool { return d.refusals("GetObject") > 0 })
	c.exits(exitPerson)
	d.open()
	for _, item := range []string{"window#", "lane"} {
		d.mark(t, item, "fmt", &types.AttributeValueMemberN{Value: "2"})
		c = begin(t, "seal", "-o", "json")
		c.exits(exitPerson)
		if words := c.lastWords(); !strings.Contains(words, "format 2") || !strings.Contains(words, "upgrade") {
			t.Errorf("seal ends with %q", words)
		} else {
			t.Log(words)
		}
		d.mark(t, item, "fmt", &types.AttributeValueMemberN{Value: "1"})
	}
	c = begin(t, "seal")
	c.exits(exitOK)
	checkReadings(t, d.dir, file)
}

func TestAHaltedLaneStaysUntilAPersonHasLooked(t *testing.T) {
	file := roomClimate(t, 20)
	halt := &types.AttributeValueMemberS{Value: "part 0 of window 1 has other rows"}
	for name, begun := range map[string]bool{"before it starts": false, "while it runs": true} {
		t.Run(name, func(t *testing.T) {
			d := openDoor(t)
			c := begin(t, "run")
			until(t, "the run has begun", func() bool { return d.status().Lane.Started })
			if begun {
				d.mark(t, "lane", "halted", halt)
				d.load(file)
			} else {
				c.stop()
				c.exits(exitOK)
				d.load(file)
				d.mark(t, "lane", "halted", halt)
				c = begin(t, "run")
			}
			c.exits(exitPerson)
			if words := c.lastWords(); !strings.Contains(words, "lane run-sensor_readings is halted: part 0 of window 1") || !strings.Contains(words, "remove the attribute halted") {
				t.Errorf("the run ends with %q", words)
			} else {
				t.Log(words)
			}
			if st := d.status(); st.Lane.Halted != halt.Value {
				t.Errorf("the status is %+v", st)
			}
		})
	}
}

func TestLocalRefusesInOneLine(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	used := t.TempDir()
	running := begin(t, "local", "--dir", used, "--listen", "127.0.0.1:0")
	until(t, "local answers", func() bool { return strings.Contains(running.stdout.String(), "answers on") })
	for name, tt := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"no folder":        {nil, exitUsage, []string{"--dir"}},
		"folder in use":    {[]string{"--dir", used, "--listen", "127.0.0.1:0"}, exitFailed, []string{used, "stop it, or use another folder"}},
		"port in use":      {[]string{"--dir", t.TempDir(), "--listen", taken.Addr().String()}, exitUsage, []string{taken.Addr().String(), "--listen"}},
		"for all to reach": {[]string{"--dir", t.TempDir(), "--listen", "0.0.0.0:0"}, exitUsage, []string{"0.0.0.0:0", "loopback", "127.0.0.1"}},
		"unknown contract": {[]string{"--dir", t.TempDir(), "--contract", "nothing"}, exitUsage, []string{"nothing", "sensor_readings"}},
		"long delivery":    {[]string{"--dir", t.TempDir(), "--deliver-every", "1h"}, exitUsage, []string{"--deliver-every", "15m"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := begin(t, append([]string{"local"}, tt.args...)...)
			c.exits(tt.code)
			words := c.lastWords()
			t.Log(words)
			for _, want := range tt.want {
				if !strings.Contains(words, want) {
					t.Errorf("%q does not say %q", words, want)
				}
			}
			if c.stdout.String() != "" {
				t.Errorf("stdout has %q", &c.stdout)
			}
		})
	}
	running.stop()
	running.exits(exitOK)
}

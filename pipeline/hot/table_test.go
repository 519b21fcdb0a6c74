package hot

import (
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/schemas"
)

func TestCreateMakesWhatTheContractSays(t *testing.T) {
	for _, name := range schemas.Names() {
		t.Run(name, func(t *testing.T) {
			env := open(t)
			c := contract(t, name)
			table, err := Create(t.Context(), env.client, c)
			if err != nil {
				t.Fatal(err)
			}
			if table.Name != c.Table || !strings.Contains(table.StreamARN, "/stream/") {
				t.Errorf("created %+v", table)
			}
			out, err := env.client.DescribeTable(t.Context(), &dynamodb.DescribeTableInput{TableName: &c.Table})
			if err != nil {
				t.Fatal(err)
			}
			d := out.Table
			if got, want := keyText(d.KeySchema), "("+c.Keys.Partition.Attribute+", "+c.Keys.Sort.Attribute+")"; got != want {
				t.Errorf("key is %s, want %s", got, want)
			}
			if v := d.StreamSpecification.StreamViewType; v != types.StreamViewTypeNewImage {
				t.Errorf("stream shows %s", v)
			}
			for _, want := range c.Indexes {
				i := slices.IndexFunc(d.GlobalSecondaryIndexes, func(g types.GlobalSecondaryIndexDescription) bool { return *g.IndexName == want.Name })
				if i < 0 {
					t.Fatalf("no index %s", want.Name)
				}
				ix := d.GlobalSecondaryIndexes[i]
				if got := keyText(ix.KeySchema); got != "("+want.Partition+", "+want.Sort+")" || ix.Projection.ProjectionType != types.ProjectionTypeAll {
					t.Errorf("index %s is %s, projection %s", want.Name, got, ix.Projection.ProjectionType)
				}
			}
			ttl, err := env.client.DescribeTimeToLive(t.Context(), &dynamodb.DescribeTimeToLiveInput{TableName: &c.Table})
			if err != nil {
				t.Fatal(err)
			}
			if got := ttl.TimeToLiveDescription; c.TTL != "" && (got.TimeToLiveStatus != types.TimeToLiveStatusEnabled || aws.ToString(got.AttributeName) != c.TTL) {
				t.Errorf("TTL is %s by %q, want it enabled by %q", got.TimeToLiveStatus, aws.ToString(got.AttributeName), c.TTL)
			}
		})
	}
}

func TestCreateTakesTheSameTableAndDescribeFindsIt(t *testing.T) {
	env := open(t)
	c := contract(t, "device_telemetry")
	first, err := Create(t.Context(), env.client, c)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Create(t.Context(), env.client, c)
	if err != nil {
		t.Fatalf("second create: %v", err)
	}
	described, err := Describe(t.Context(), env.client, c.Table)
	if err != nil {
		t.Fatal(err)
	}
	if first != second || first != described {
		t.Errorf("created %+v, then %+v, described %+v", first, second, described)
	}
}

func TestCreateEnablesTTLThatAnInterruptedCreateLeftOut(t *testing.T) {
	env := open(t)
	c := contract(t, "sensor_readings")
	in, err := createInput(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := env.client.CreateTable(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(t.Context(), env.client, c); err != nil {
		t.Fatal(err)
	}
	ttl, err := env.client.DescribeTimeToLive(t.Context(), &dynamodb.DescribeTimeToLiveInput{TableName: &c.Table})
	if err != nil {
		t.Fatal(err)
	}
	if got := ttl.TimeToLiveDescription.TimeToLiveStatus; got != types.TimeToLiveStatusEnabled {
		t.Errorf("TTL is %s", got)
	}
}

func TestCreateRefusesAnotherTableOfTheName(t *testing.T) {
	tests := map[string]struct {
		change func(*dynamodb.CreateTableInput)
		want   string
	}{
		"key": {func(in *dynamodb.CreateTableInput) {
			in.KeySchema = keySchema("event_ts", "device_id")
		}, "its key is (event_ts, device_id), not (device_id, event_ts)"},
		"index": {func(in *dynamodb.CreateTableInput) {
			in.GlobalSecondaryIndexes[0].IndexName = aws.String("other")
		}, "it has no index job_site_index"},
		"no stream": {func(in *dynamodb.CreateTableInput) {
			in.StreamSpecification = nil
		}, "it has no stream"},
		"view type": {func(in *dynamodb.CreateTableInput) {
			in.StreamSpecification.StreamViewType = types.StreamViewTypeKeysOnly
		}, "its stream shows KEYS_ONLY"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			env := open(t)
			c := contract(t, "device_telemetry")
			in, err := createInput(c)
			if err != nil {
				t.Fatal(err)
			}
			test.change(in)
			if _, err := env.client.CreateTable(t.Context(), in); err != nil {
				t.Fatal(err)
			}
			if _, err := Create(t.Context(), env.client, c); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one that says %q", err, test.want)
			}
		})
	}
}

func TestDescribeNamesAMissingTable(t *testing.T) {
	env := open(t)
	if _, err := Describe(t.Context(), env.client, "absent"); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("error %v", err)
	}
}

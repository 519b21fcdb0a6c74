// Package hot knows the hot table: the DynamoDB table that devices write to and that keeps
// the last days of readings. It makes the table, writes and counts items, reads readings
// from files, and simulates a fleet. Its one rule: numbers stay the text they came as.
package hot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/schemas"
)

// An Item is an item of the table.
type Item = map[string]types.AttributeValue

// A Table is a hot table as it stands.
type Table struct {
	Name      string
	StreamARN string // of the stream that takes records now
}

// pollTable is the wait between looks at a table that is being made; AWS takes seconds.
const pollTable = 500 * time.Millisecond

// Create makes the table of a contract: on demand, with its keys and indexes, a stream of new
// images, and TTL. It returns once the table is active. A table that is there already is
// taken if it is the same, and gets its TTL if it lacks it; if it differs, the error says how.
func Create(ctx context.Context, client *dynamodb.Client, c *schemas.Contract) (Table, error) {
	in, err := createInput(c)
	if err != nil {
		return Table{}, fmt.Errorf("create table %s: %w", c.Table, err)
	}
	if _, err := client.CreateTable(ctx, in); err != nil {
		if _, exists := errors.AsType[*types.ResourceInUseException](err); !exists {
			return Table{}, fmt.Errorf("create table %s: %w", c.Table, err)
		}
	}
	d, err := waitActive(ctx, client, c.Table)
	if err != nil {
		return Table{}, err
	}
	if err := compare(in, d); err != nil {
		return Table{}, fmt.Errorf("table %s is not the one that contract %s describes: %w; use another table, or change it by hand", c.Table, c.Name, err)
	}
	if err := enableTTL(ctx, client, c); err != nil {
		return Table{}, err
	}
	return tableOf(d)
}

// Describe returns the table of that name. A table without a stream of new images is an error.
func Describe(ctx context.Context, client *dynamodb.Client, name string) (Table, error) {
	d, err := describe(ctx, client, name)
	if err != nil {
		return Table{}, err
	}
	return tableOf(d)
}

func describe(ctx context.Context, client *dynamodb.Client, name string) (*types.TableDescription, error) {
	out, err := client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: aws.String(name)})
	if err != nil {
		return nil, fmt.Errorf("describe table %s: %w", name, err)
	}
	return out.Table, nil
}

func tableOf(d *types.TableDescription) (Table, error) {
	t := Table{Name: aws.ToString(d.TableName), StreamARN: aws.ToString(d.LatestStreamArn)}
	if err := checkStream(d.StreamSpecification); err != nil {
		return t, fmt.Errorf("table %s: %w", t.Name, err)
	}
	return t, nil
}

func checkStream(s *types.StreamSpecification) error {
	switch {
	case s == nil || !aws.ToBool(s.StreamEnabled):
		return errors.New("it has no stream; enable one with view type NEW_IMAGE")
	case s.StreamViewType != types.StreamViewTypeNewImage && s.StreamViewType != types.StreamViewTypeNewAndOldImages:
		return fmt.Errorf("its stream shows %s; it must show NEW_IMAGE: disable it, wait until it is read to its end, and enable another", s.StreamViewType)
	}
	return nil
}

func createInput(c *schemas.Contract) (*dynamodb.CreateTableInput, error) {
	in := &dynamodb.CreateTableInput{
		TableName:   aws.String(c.Table),
		BillingMode: types.BillingModePayPerRequest,
		KeySchema:   keySchema(c.Keys.Partition.Attribute, c.Keys.Sort.Attribute),
		// NEW_IMAGE alone: what a reading was before is in the lake already, and old images
		// would double the stream's bytes.
		StreamSpecification: &types.StreamSpecification{StreamEnabled: aws.Bool(true), StreamViewType: types.StreamViewTypeNewImage},
	}
	keys := []string{c.Keys.Partition.Attribute, c.Keys.Sort.Attribute}
	for _, ix := range c.Indexes {
		in.GlobalSecondaryIndexes = append(in.GlobalSecondaryIndexes, types.GlobalSecondaryIndex{
			IndexName:  aws.String(ix.Name),
			KeySchema:  keySchema(ix.Partition, ix.Sort),
			Projection: &types.Projection{ProjectionType: types.ProjectionTypeAll},
		})
		keys = append(keys, ix.Partition, ix.Sort)
	}
	slices.Sort(keys)
	for _, name := range slices.Compact(keys) {
		if name == "" {
			continue
		}
		typ, ok := c.AttributeType(name)
		if !ok {
			return nil, fmt.Errorf("contract %s does not say the type of key attribute %s; describe it as a column", c.Name, name)
		}
		in.AttributeDefinitions = append(in.AttributeDefinitions, types.AttributeDefinition{
			AttributeName: aws.String(name), AttributeType: types.ScalarAttributeType(typ),
		})
	}
	return in, nil
}

func keySchema(partition, sort string) []types.KeySchemaElement {
	s := []types.KeySchemaElement{{AttributeName: aws.String(partition), KeyType: types.KeyTypeHash}}
	if sort != "" {
		s = append(s, types.KeySchemaElement{AttributeName: aws.String(sort), KeyType: types.KeyTypeRange})
	}
	return s
}

func waitActive(ctx context.Context, client *dynamodb.Client, name string) (*types.TableDescription, error) {
	for {
		d, err := describe(ctx, client, name)
		if err != nil {
			return nil, err
		}
		active := d.TableStatus == types.TableStatusActive
		for _, ix := range d.GlobalSecondaryIndexes {
			active = active && ix.IndexStatus == types.IndexStatusActive
		}
		if active {
			return d, nil
		}
		if err := sleep(ctx, pollTable); err != nil {
			return nil, fmt.Errorf("wait for table %s (%s): %w", name, d.TableStatus, err)
		}
	}
}

// compare reports how the table differs in what cannot be changed afterwards.
func compare(want *dynamodb.CreateTableInput, got *types.TableDescription) error {
	if w, g := keyText(want.KeySchema), keyText(got.KeySchema); w != g {
		return fmt.Errorf("its key is %s, not %s", g, w)
	}
	kinds := map[string]types.ScalarAttributeType{}
	for _, a := range got.AttributeDefinitions {
		kinds[aws.ToString(a.AttributeName)] = a.AttributeType
	}
	for _, ix := range want.GlobalSecondaryIndexes {
		i := slices.IndexFunc(got.GlobalSecondaryIndexes, func(d types.GlobalSecondaryIndexDescription) bool {
			return aws.ToString(d.IndexName) == aws.ToString(ix.IndexName)
		})
		if i < 0 {
			return fmt.Errorf("it has no index %s", *ix.IndexName)
		}
		if w, g := keyText(ix.KeySchema), keyText(got.GlobalSecondaryIndexes[i].KeySchema); w != g {
			return fmt.Errorf("the key of index %s is %s, not %s", *ix.IndexName, g, w)
		}
	}
	for _, a := range want.AttributeDefinitions {
		if kind := kinds[*a.AttributeName]; kind != a.AttributeType {
			return fmt.Errorf("attribute %s is of type %s, not %s", *a.AttributeName, kind, a.AttributeType)
		}
	}
	return checkStream(got.StreamSpecification)
}

func keyText(schema []types.KeySchemaElement) string {
	var partition, sort string
	for _, e := range schema {
		if e.KeyType == types.KeyTypeHash {
			partition = aws.ToString(e.AttributeName)
		} else {
			sort = aws.ToString(e.AttributeName)
		}
	}
	return "(" + partition + ", " + sort + ")"
}

func enableTTL(ctx context.Context, client *dynamodb.Client, c *schemas.Contract) error {
	if c.TTL == "" {
		return nil
	}
	out, err := client.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: aws.String(c.Table)})
	if err != nil {
		return fmt.Errorf("describe TTL of table %s: %w", c.Table, err)
	}
	if d := out.TimeToLiveDescription; d != nil {
		on := d.TimeToLiveStatus == types.TimeToLiveStatusEnabled || d.TimeToLiveStatus == types.TimeToLiveStatusEnabling
		switch name := aws.ToString(d.AttributeName); {
		case on && name == c.TTL:
			return nil
		case on:
			return fmt.Errorf("table %s expires items by %s, the contract says %s: disable its TTL, wait an hour, and run this again", c.Table, name, c.TTL)
		}
	}
	_, err = client.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{
		TableName:               aws.String(c.Table),
		TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: aws.String(c.TTL), Enabled: aws.Bool(true)},
	})
	if err != nil {
		return fmt.Errorf("enable TTL of table %s by %s: %w", c.Table, c.TTL, err)
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return ctx.Err()
	}
}

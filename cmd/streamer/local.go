package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/firehose"
	fhtypes "github.com/aws/aws-sdk-go-v2/service/firehose/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"telemetrylake/pipeline/checkpoint"
	"telemetrylake/pipeline/hot"
	"telemetrylake/schemas"
	"telemetrylake/testenv"
)

// localOptions are the flags of the local command.
type localOptions struct {
	dir       string
	listen    string
	contracts []string
	delivery  time.Duration
	contained bool
}

func newLocal() *cobra.Command {
	var o localOptions
	c := &cobra.Command{
		Use:   "local --dir FOLDER",
		Short: "Run an embedded AWS on this machine, with everything kept in a folder",
		Long: `Run DynamoDB, DynamoDB Streams, Firehose and S3 in the foreground, on loopback,
with the tables, buckets and delivery streams of the contracts. Everything is kept
in the folder: the next start goes on, also after a kill. S3's objects are plain
files in it, so the lake can be looked at with any tool.

It writes FOLDER/env. In another terminal:
  . FOLDER/env
after which load, run, seal, query, status and ddl need no further flags but the
contract, and the aws command line works too.

In a container loopback is the container's own. There --in-container has it listen
where --listen says; publish the port on 127.0.0.1, and let other containers call it
aws.internal: it answers to no other name.`,
		Example: `  streamer local --dir ./aws
  streamer local --dir ./aws --contract sensor_readings --contract ./mine.yaml`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error { return explain(local(c.Context(), o, c.OutOrStdout())) },
	}
	f := c.Flags()
	f.StringVar(&o.dir, "dir", "", "folder to keep everything in")
	f.StringVar(&o.listen, "listen", "127.0.0.1:4588", "loopback address and port; port 0 takes a free one")
	f.StringArrayVar(&o.contracts, "contract", schemas.Names(), "contract whose table is made; may be repeated, and then replaces the default")
	f.BoolVar(&o.contained, "in-container", false, "the network is a container's: --listen may name an address that is not loopback")
	f.DurationVar(&o.delivery, "deliver-every", 15*time.Second, "how long Firehose buffers, 0s to 15m")
	return c
}

func local(ctx context.Context, o localOptions, out io.Writer) error {
	if o.dir == "" {
		return usagef("no folder named; add --dir FOLDER")
	}
	if o.delivery < 0 || o.delivery > 15*time.Minute {
		return usagef("--deliver-every %s: Firehose buffers for 0s to 15m", o.delivery)
	}
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return usage(err)
	}
	var contracts []*schemas.Contract
	for _, name := range o.contracts {
		c, err := loadContract(name)
		if err != nil {
			return err
		}
		contracts = append(contracts, c)
	}
	// Listening comes first: an address that cannot be had leaves no half-made folder.
	l, err := o.bind()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return errors.Join(usagef("use --dir: %w; name a folder that can be written", err), l.Close())
	}
	env, err := testenv.Open(testenv.Options{Dir: dir, Durable: true})
	if err != nil {
		return errors.Join(err, l.Close())
	}
	if err := furnish(ctx, newClients(env.AWSConfig()), contracts, o.delivery); err != nil {
		return errors.Join(err, l.Close(), env.Close())
	}
	lines := localEnv(dir, reachable(l.Addr()))
	path := filepath.Join(dir, "env")
	if err := replaceFile(path, lines); err != nil {
		return errors.Join(err, l.Close(), env.Close())
	}
	fmt.Fprintf(out, "%s\nThe embedded AWS answers on http://%s and keeps everything in %s.\nIn another terminal:  . %s\n", lines, reachable(l.Addr()), dir, path)
	g, gctx := errgroup.WithContext(ctx)
	serve := env.Serve
	if o.contained {
		serve = env.ServeContainer
	}
	g.Go(func() error { return serve(gctx, l) })
	g.Go(func() error { return env.Run(gctx) })
	return errors.Join(g.Wait(), env.Close())
}

func (o localOptions) bind() (net.Listener, error) {
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return nil, usagef("listen on %s: %w; name another address with --listen", o.listen, err)
	}
	if a, ok := l.Addr().(*net.TCPAddr); !o.contained && (!ok || !a.IP.IsLoopback()) {
		return nil, errors.Join(usagef("--listen %s is not on loopback; there are no credentials to check: name 127.0.0.1:PORT or [::1]:PORT", o.listen), l.Close())
	}
	return l, nil
}

// reachable is the address at which this machine, or this container, finds a listener: one on
// every address is on loopback too.
func reachable(a net.Addr) string {
	if t, ok := a.(*net.TCPAddr); ok && t.IP.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", fmt.Sprint(t.Port))
	}
	return a.String()
}

// replaceFile writes a file that another terminal may be reading: it finds the old or the new.
func replaceFile(path, text string) error {
	next := path + ".new"
	err := os.WriteFile(next, []byte(text), 0o600)
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// furnish makes what the contracts need, as far as it is not there.
func furnish(ctx context.Context, c clients, contracts []*schemas.Contract, delivery time.Duration) error {
	for _, b := range []string{stagingBucket, lakeBucket} {
		_, err := c.s3.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &b})
		if _, exists := errors.AsType[*types.BucketAlreadyOwnedByYou](err); err != nil && !exists {
			return fmt.Errorf("create bucket %s: %w", b, err)
		}
	}
	if err := checkpoint.New(c.dynamodb, checkpointTable, checkpoint.Options{}).Create(ctx); err != nil {
		return err
	}
	for _, contract := range contracts {
		if _, err := hot.Create(ctx, c.dynamodb, contract); err != nil {
			return err
		}
		err := createDelivery(ctx, c.firehose, contract.Table, partsPrefix+contract.Table+"/", delivery)
		if _, exists := errors.AsType[*fhtypes.ResourceInUseException](err); err != nil && !exists {
			return err
		}
	}
	return nil
}

// createDelivery makes a delivery stream that leaves parts as they are.
func createDelivery(ctx context.Context, c *firehose.Client, name, prefix string, interval time.Duration) error {
	_, err := c.CreateDeliveryStream(ctx, &firehose.CreateDeliveryStreamInput{
		DeliveryStreamName: &name,
		DeliveryStreamType: fhtypes.DeliveryStreamTypeDirectPut,
		ExtendedS3DestinationConfiguration: &fhtypes.ExtendedS3DestinationConfiguration{
			BucketARN: aws.String("arn:aws:s3:::" + stagingBucket),
			RoleARN:   aws.String("arn:aws:iam::" + testenv.DefaultAccount + ":role/telemetry-delivery"),
			Prefix:    &prefix,
			BufferingHints: &fhtypes.BufferingHints{
				IntervalInSeconds: aws.Int32(int32(interval / time.Second)), SizeInMBs: aws.Int32(deliverySizeMB),
			},
			CompressionFormat: fhtypes.CompressionFormatUncompressed,
		},
	})
	if err != nil {
		return fmt.Errorf("create delivery stream %s: %w", name, err)
	}
	return nil
}

// localEnv are the lines that point AWS's tools and ours at the embedded AWS. Windows and
// sweeps are short: a person waits.
func localEnv(dir, addr string) string {
	var b strings.Builder
	for _, v := range [][2]string{
		{"AWS_ENDPOINT_URL", "http://" + addr},
		{"AWS_REGION", testenv.DefaultRegion},
		{"AWS_DEFAULT_REGION", testenv.DefaultRegion}, // the name that version 1 of the aws command line knows
		{"AWS_ACCESS_KEY_ID", "test"},
		{"AWS_SECRET_ACCESS_KEY", "test"},
		{"AWS_EC2_METADATA_DISABLED", "true"},
		{"STREAMER_STAGING", "s3://" + stagingBucket + "/" + partsPrefix},
		{"STREAMER_DAMAGED", "s3://" + stagingBucket + "/" + damagedPrefix},
		{"STREAMER_LAKE", "s3://" + lakeBucket + "/"},
		{"STREAMER_LAKE_DIR", filepath.Join(dir, "s3", lakeBucket)},
		{"STREAMER_CHECKPOINT_TABLE", checkpointTable},
		{"STREAMER_WINDOW_AGE", "5s"},
		{"STREAMER_SEAL_EVERY", "5s"},
	} {
		fmt.Fprintf(&b, "export %s=%s\n", v[0], shellQuote(v[1]))
	}
	b.WriteString("unset AWS_PROFILE AWS_SESSION_TOKEN\n")
	return b.String()
}

func shellQuote(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

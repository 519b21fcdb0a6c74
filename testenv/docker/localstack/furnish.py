"""Makes in LocalStack what the pipeline finds in AWS: buckets, and a delivery stream for each
table that delivers into staging and leaves records as they are.

LocalStack runs it once its services are ready, in its own interpreter. Run as a program with
--made it is the container's health check: it ends well once all of that has happened. That needs
the standard library alone, for the image's own Python may have no more.
"""

import json
import os
import sys
import urllib.request

ENDPOINT = "http://127.0.0.1:4566"
STAGING, PREFIX = "telemetry-staging", "parts/"


def made():
    """Whether every script of this stage has run, and none has failed."""
    with urllib.request.urlopen(ENDPOINT + "/_localstack/init/ready", timeout=5) as answer:
        stage = json.load(answer)
    return stage["completed"] and all(s["state"] == "SUCCESSFUL" for s in stage["scripts"])


def furnish():
    import boto3

    aws = {
        "endpoint_url": ENDPOINT,
        "region_name": os.environ.get("AWS_REGION", "us-east-1"),
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test",
    }
    s3, firehose = boto3.client("s3", **aws), boto3.client("firehose", **aws)
    for bucket in os.environ["BUCKETS"].split():
        s3.create_bucket(Bucket=bucket)
    for name in os.environ["DELIVERY_STREAMS"].split():
        firehose.create_delivery_stream(
            DeliveryStreamName=name,
            DeliveryStreamType="DirectPut",
            ExtendedS3DestinationConfiguration={
                "BucketARN": "arn:aws:s3:::" + STAGING,
                "RoleARN": "arn:aws:iam::000000000000:role/telemetry-delivery",
                "Prefix": PREFIX + name + "/",
                "BufferingHints": {"IntervalInSeconds": 15, "SizeInMBs": 64},
                "CompressionFormat": "UNCOMPRESSED",
            },
        )


if "--made" in sys.argv[1:]:
    sys.exit(0 if made() else "not made yet")
furnish()

"""Prints the reward of every version of a policy as it comes: an example of a program that reads a run's topic.

    python examples/metrics_consumer.py kafka://127.0.0.1:9092/arithmetic solver

Needs confluent-kafka and fastavro, and of Headrace only one schema file. A message of `RUN.batches.POLICY` is two
magic bytes, eight bytes that name its schema, and the record in Avro. Send the numbers to your own system: Prometheus,
TensorBoard, W&B.
"""

import io
import json
import sys
from pathlib import Path
from urllib.parse import urlsplit

from confluent_kafka import Consumer, KafkaError
from fastavro import parse_schema, schemaless_reader

address, policy, *rest = sys.argv[1:] if len(sys.argv) > 2 else sys.exit(__doc__)
cluster, run = urlsplit(address).netloc, urlsplit(address).path.strip("/")
avsc = Path(__file__).parents[1] / "schemas" / "avsc" / "BatchTrained.avsc"
schema = parse_schema(json.loads(avsc.read_text()))

consumer = Consumer(
    {
        "bootstrap.servers": cluster,
        "group.id": f"{run}.metrics-{policy}",
        "enable.auto.commit": False,  # every start begins with version 1
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "enable.partition.eof": "--once" in rest,
    }
)
consumer.subscribe([f"{run}.batches.{policy}"])
while True:
    message = consumer.poll(1.0)
    if message is None:
        continue
    if error := message.error():  # with --once also the end of the topic
        sys.exit(None if error.code() == KafkaError._PARTITION_EOF else f"error: {error.str()}")  # noqa: SLF001
    batch = schemaless_reader(io.BytesIO(message.value()[10:]), schema, None)
    if batch["version"] > 0:  # a record without a version only reports groups that were evicted
        metrics = batch["metrics"]
        print(f"version {batch['version']:4}  reward {metrics['reward_mean']:.3f}  groups {len(batch['groups'])}")

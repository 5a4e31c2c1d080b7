"""A Kafka client that is configured by a properties file alone: kafka_client.py FILE BOOTSTRAP SECONDS.

Prints the number of brokers that the cluster has, and why connections failed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from confluent_kafka import KafkaException  # type: ignore[import-not-found]  # installed in build/programs/kafka only
from confluent_kafka.admin import AdminClient  # type: ignore[import-not-found]  # likewise

lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
configuration = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
errors: list[str] = []
client = AdminClient(
    {**configuration, "bootstrap.servers": sys.argv[2], "error_cb": lambda error: errors.append(error.str())}
)
try:
    sys.stdout.write(f"brokers {len(client.list_topics(timeout=int(sys.argv[3])).brokers)}\n")
except KafkaException as error:
    client.poll(0)
    sys.stdout.write(f"failed {error.args[0].str()} {errors}\n")

"""Campaign `security`: ACLs against a reference, ZooKeeper over TLS, files of Kafka, and Apache Kafka itself."""

from __future__ import annotations

import kafka_matrix
import zookeeper_tls
from acl_campaign import compare_acls

from campaign.report import Report
from campaign.suites import run_pytest

_ENVIRONMENT = {"OTTLA_SECURITY": "1"}


def run(report: Report, *, cases: int, seed: int, kafka: bool) -> None:
    compare_acls(report, cases=cases, seed=seed)
    zookeeper_tls.check(report)
    run_pytest(report, "-q", "tests/compat/test_server_properties.py", environment=_ENVIRONMENT)
    if kafka:
        kafka_matrix.compare_with_kafka(report)
        run_pytest(report, "-q", "tests/compat/test_cluster_tokens.py", environment=_ENVIRONMENT)

"""How tests are divided among pytest-xdist workers: into work units, the longest first.

A work unit runs in one worker, in order. It is a test file, because module-scoped fixtures start brokers. All of
`tests/spark` is one unit, because its tests share one Spark session, whose start costs more than most of them.

Many tests wait for timeouts, for processes to start or for the disk, so `make test` starts more workers than there are
cores. A long unit must not start last, or the other workers would wait for it: units start in the order of the seconds
below. Seconds that are out of date make a run longer, never wrong.
"""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from xdist.scheduler import LoadScopeScheduling

#: a directory whose tests share one expensive fixture
TOGETHER = ("tests/spark",)
#: seconds that a unit takes alone; units that are not listed take less than any of these
SECONDS = {
    "tests/spark": 280,
    "tests/compat/test_client_transactions.py": 80,
    "tests/model/test_transaction_cuts.py": 50,
    "tests/broker/test_cli_group.py": 37,
    "tests/compat/test_client_records.py": 36,
    "tests/compat/test_java_groups.py": 36,
    "tests/broker/test_spark_commit.py": 35,
    "tests/cluster/test_cluster.py": 33,
    "tests/compat/test_foreign_transactions.py": 32,
    "tests/groups/test_members_restart.py": 32,
    "tests/compat/test_interchange.py": 31,
    "tests/broker/test_hostile_groups.py": 31,
    "tests/model/test_spark_codec.py": 30,
    "tests/model/test_records_properties.py": 28,
    "tests/compat/test_other_clients.py": 26,
    "tests/groups/test_members_storm.py": 25,
    "tests/crash/test_crash_kill.py": 23,
    "tests/compat/test_java_tools.py": 22,
    "tests/sdp/test_sdp_runs.py": 19,
    "tests/clauses/test_transaction_clauses.py": 19,
    "tests/broker/test_cli.py": 18,
    "tests/broker/test_documented_examples.py": 18,
    "tests/broker/test_hostile.py": 17,
    "tests/clauses/test_same_as_kafka.py": 16,
    "tests/transactions/test_transactions_mixed.py": 16,
    "tests/model/test_compaction_cuts.py": 15,
    "tests/model/test_log_transactions_machine.py": 15,
    "tests/model/test_transaction_machine.py": 15,
    "tests/compat/test_client_groups.py": 15,
    "tests/crash/test_crash_disk.py": 15,
    "tests/compat/test_cluster_admin.py": 15,
    "tests/compat/test_segment_files.py": 14,
    "tests/compat/test_cluster_java_tools.py": 12,
    "tests/model/test_compaction_machine.py": 12,
    "tests/model/test_log_machine.py": 12,
    "tests/broker/test_client_producer.py": 12,
    "tests/broker/test_operations_pages.py": 12,
    "tests/broker/test_cli_txn.py": 10,
    "tests/clauses/test_transactions_same_as_kafka.py": 10,
    "tests/compat/test_kafkajs_groups.py": 10,
    "tests/clauses/test_group_clauses.py": 10,
    "tests/model/test_consumer_group_machine.py": 10,
    "tests/model/test_codec_properties.py": 10,
    "tests/groups/test_members_upgrade.py": 9,
    "tests/broker/test_client_reader.py": 9,
    "tests/compat/test_client_restart.py": 9,
    "tests/broker/test_lifecycle.py": 8,
    "tests/groups/test_members_pause.py": 8,
    "tests/broker/test_group_why.py": 8,
    "tests/transactions/test_transactions_copy.py": 8,
    "tests/crash/test_crash_data_directory.py": 8,
}


def unit_of(nodeid: str) -> str:
    """Return the work unit of a test."""
    path = PurePosixPath(nodeid.partition("::")[0])
    for parent in path.parents:
        if str(parent) in TOGETHER:
            return str(parent)
    return str(path)


def order(items: list[pytest.Item]) -> None:
    """Sort tests by the seconds of their unit, the longest first; tests of a unit keep their order."""
    items.sort(key=lambda item: -SECONDS.get(unit_of(item.nodeid), 0))


class UnitScheduling(LoadScopeScheduling):
    """Give a worker the next unit as soon as it has nearly finished the one before."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

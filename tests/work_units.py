"""How tests are divided among pytest-xdist workers: into work units, the longest first.

A work unit runs in one worker, in order. It is a test file, because module-scoped fixtures start brokers. All of
`tests/spark` is one unit, because its tests share one Spark session, whose start costs more than most of them.

Many tests wait for timeouts, for processes to start or for the disk, so `make test` starts more workers than there are
cores. A long unit must not start last, or the other workers would wait for it: units start in the order of the seconds
below. Seconds that are out of date make a run longer, never wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import pytest
from xdist.scheduler import LoadScopeScheduling

#: a directory whose tests share one expensive fixture
TOGETHER = ("tests/spark",)
#: seconds that a unit takes in a run of all tests; units that are not listed take less than any of these
SECONDS = {
    "tests/spark": 350,
    "tests/compat/test_client_transactions.py": 85,
    "tests/broker/test_up_processes.py": 41,
    "tests/broker/test_cli_group.py": 39,
    "tests/sim/test_simulation.py": 33,
    "tests/groups/test_members_restart.py": 32,
    "tests/compat/test_java_groups.py": 32,
    "tests/groups/test_members_storm.py": 29,
    "tests/cluster/test_cluster.py": 28,
    "tests/crash/test_crash_kill.py": 25,
    "tests/broker/test_documented_examples.py": 25,
    "tests/compat/test_interchange.py": 24,
    "tests/broker/test_cli.py": 23,
    "tests/clauses/test_same_as_kafka.py": 22,
    "tests/model/test_transaction_cuts.py": 21,
    "tests/model/test_spark_codec.py": 20,
    "tests/broker/test_hostile.py": 20,
    "tests/edge/test_openapi_fuzz.py": 19,
    "tests/edge/test_registry_instances.py": 19,
    "tests/transactions/test_transactions_mixed.py": 18,
    "tests/compat/test_foreign_transactions.py": 18,
    "tests/crash/test_crash_disk.py": 16,
    "tests/clauses/test_transactions_same_as_kafka.py": 15,
    "tests/compat/test_secure_clients.py": 15,
    "tests/broker/test_hostile_groups.py": 14,
    "tests/hostile/test_hostile_opening.py": 14,
    "tests/cluster/test_cluster_cuts.py": 14,
    "tests/compat/test_segment_files.py": 13,
    "tests/compat/test_cluster_java_tools.py": 13,
    "tests/compat/test_kafkajs_groups.py": 12,
    "tests/clauses/test_quotas_same_as_kafka.py": 12,
    "tests/edge/test_registry_tls.py": 12,
    "tests/cluster/test_cluster_transactions.py": 12,
    "tests/broker/test_operations_pages.py": 10,
    "tests/test_tidy.py": 10,
    "tests/compat/test_java_tools.py": 10,
    "tests/compat/test_cluster_admin.py": 10,
    "tests/edge/test_rest_tokens.py": 10,
    "tests/groups/test_members_upgrade.py": 9,
    "tests/compat/test_client_restart.py": 9,
    "tests/transactions/test_transactions_bank.py": 9,
    "tests/broker/test_client_producer.py": 9,
    "tests/hostile/test_hostile_metrics.py": 9,
    "tests/broker/test_group_why.py": 8,
    "tests/edge/test_registry_clients.py": 8,
    "tests/cluster/test_cluster_commands.py": 8,
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


def rewrite_share(config: pytest.Config, files: Iterable[Path], number: int, count: int) -> bool:
    """Store the rewritten assertions of every ``count``-th file, from the file with this number on.

    All workers import all files at the same time. In a new clone each of them would rewrite the assertions of all,
    which takes most of a minute; so each stores a part before, where pytest looks for it. The functions are not public:
    with a release of pytest that has others nothing is stored, and the start takes longer. Return whether they exist.
    """
    if sys.dont_write_bytecode:
        return True
    try:
        from _pytest.assertion import rewrite

        state = config.stash[rewrite.assertstate_key]
        for path in sorted(files)[number::count]:
            stored = rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)
            if rewrite._read_pyc(path, stored) is None and rewrite.try_makedirs(stored.parent):
                source, code = rewrite._rewrite_test(path, config)
                rewrite._write_pyc(state, code, source, stored)
    except (ImportError, AttributeError, TypeError, KeyError):
        return False
    return True

"""Clients of three libraries in transactions, behind a network that delays, repeats and loses what they ask for.

    python mixed.py --seed 7 --directory run-7

One run is a few seconds, and a process of its own, for the libraries leave threads behind. It prints one line of JSON:
what the checker found, and figures. The directory keeps the history, the faults, and the broker's data and log.

Every client sends, commits and aborts by the seed; now and then a second producer takes its transactional id in the
middle of a transaction, and the first goes on as if it had not noticed. Two readers read along. In some runs the
broker is killed, in some transactions time out. What everybody saw becomes a history.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from clients import LIBRARIES, Confluent, Failed, TransactionalClient
from reading import Tail, await_stable, committed_offsets, create_topic, record_final
from txn_campaign import VERIFY, kill_and_launch

from campaign.processes import check_log, end_with_parent, free_port, wait_until
from ottla.testing import BrokerProcess
from ottla.testing.history import Anomalies, History, Outcome, Place, Recorder, check, read_events
from ottla.testing.proxy import Fault, FaultProxy, Faults

_PARTITIONS = 3
#: every client has so many, and goes on while another has not yet
_TRANSACTIONS = 10
_TRANSACTIONS_MAX = 60
_CONNECT_S_MAX = 40.0
_RUN_S_MAX = 90.0
_LONG_MS = 60_000
_SHORT_MS = 1500
_ERROR_KIND = re.compile(r"(?:KafkaError\{code=)?(\w+)")
_HISTORY = "history.jsonl"


class MixedRun:
    """One run from its seed. ``play`` gives what the checker found."""

    def __init__(self, seed: int, directory: Path, listener: str) -> None:
        self.seed = seed
        self.recorder = Recorder(directory / _HISTORY)
        self.rng = random.Random(seed)
        self.errors: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.send_errors: Counter[str] = Counter()
        self.kills = 0
        self._unfinished = set(LIBRARIES)
        #: transactions time out in a part of the runs, and then clients dawdle now and then
        self.timeout_ms = _SHORT_MS if self.rng.random() < 0.25 else _LONG_MS
        #: what is open at the end: a last producer aborts it, or nobody does until its time is over
        self._is_left_open = self.timeout_ms == _SHORT_MS and self.rng.random() < 0.5
        self._is_killing = self.rng.random() < 0.25
        self._directory = directory
        self._listener = listener
        self._settings = {
            "listeners": f"PLAINTEXT://{listener}",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "300",
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.num.partitions": "3",
            **VERIFY,
        }

    def play(self) -> Anomalies:
        with ExitStack() as stack:
            proxy = stack.enter_context(FaultProxy(self._listener, seed=self.seed))
            settings = {**self._settings, "advertised.listeners": f"PLAINTEXT://{proxy.address}"}
            broker = stack.enter_context(BrokerProcess.start(self._directory / "data", settings))
            stack.callback(self._keep_evidence, broker, proxy)
            places = create_topic(proxy.address, "mixed", _PARTITIONS)
            tails = [Tail(proxy.address, places, self.recorder, f"tail-{number}") for number in range(2)]
            for tail in tails:
                stack.callback(tail.stop)
            workers = [_Worker(self, proxy.address, name, places) for name in LIBRARIES]
            proxy.faults = self._draw_faults()
            self._run(workers, broker)
            proxy.faults = None
            wait_until(lambda: proxy.under_way == 0, "late requests have arrived", 60)
            for worker in workers:
                if not self._is_left_open:
                    worker.take_over()
            await_stable(broker.bootstrap, places, self.recorder)
            for worker in workers:
                worker.note_committed()
            record_final(proxy.address, places, self.recorder)
            self.errors += [error for tail in tails for error in tail.errors]
            check_log(broker)
        found = check(History.of(read_events(self._directory / _HISTORY)))
        if self.errors:
            found["errors"] = self.errors
        return found

    def _keep_evidence(self, broker: BrokerProcess, proxy: FaultProxy) -> None:
        """What is not in the history and may explain it, with the same clock."""
        self.faults.update(each.fault.value for each in proxy.happened)
        (self._directory / "broker.log").write_text(broker.errors())
        faults = [f"{each.t:.6f} {each.client_id} {each.api_key} {each.fault.value}" for each in proxy.happened]
        (self._directory / "faults.log").write_text("\n".join(faults))

    def _draw_faults(self) -> Faults:
        kinds = tuple(self.rng.sample(list(Fault), self.rng.randint(1, len(Fault))))
        return Faults(
            rate=self.rng.uniform(0.03, 0.25), kinds=kinds, delay_s_max=self.rng.choice((0.05, 0.3, 1.0)),
            client_prefix="mixed-",
        )  # fmt: skip

    def _run(self, workers: list[_Worker], broker: BrokerProcess) -> None:
        threads = [threading.Thread(target=self._guard, args=(worker.run,), daemon=True) for worker in workers]
        for thread in threads:
            thread.start()
        pause = threading.Event()
        if self._is_killing:
            for _ in range(self.rng.randint(1, 2)):
                pause.wait(self.rng.uniform(0.2, 1.5))
                kill_and_launch(broker)
                self.kills += 1
        for worker, thread in zip(workers, threads, strict=True):
            thread.join(_RUN_S_MAX)
            if thread.is_alive():
                self.errors.append(f"{worker.name} still runs after {_RUN_S_MAX:.0f} s")

    def is_enough(self, worker: _Worker, transactions: int) -> bool:
        """Whether a worker may end that has had so many transactions."""
        if transactions >= _TRANSACTIONS:
            self._unfinished.discard(worker.name)
        return not self._unfinished

    def _guard(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:
            self.errors.append(repr(error))


class _Worker:
    """The producers of one library with one transactional id, one after another."""

    def __init__(self, run: MixedRun, bootstrap: str, name: str, places: list[Place]) -> None:
        self.name = name
        self._run = run
        self._bootstrap = bootstrap
        self._places = places
        self._rng = random.Random(run.rng.getrandbits(32))
        self._recorder = run.recorder
        self._group = f"group-{name}"
        self._lives = itertools.count(1)
        self._values = itertools.count()
        self._pause = threading.Event()

    def run(self) -> None:
        name, client = self._connect()
        try:
            for number in range(_TRANSACTIONS_MAX):
                if self._run.is_enough(self, number):
                    break
                if client is None:
                    name, client = self._connect()
                if not self._transact(name, client, number):
                    client.close()
                    client = None
        finally:
            if client is not None:
                client.close()

    def take_over(self) -> None:
        """A last producer, so that what is open is aborted."""
        name = self._name()
        self._recorder.init(name, self.name)
        client = Confluent(self._bootstrap, self.name, "last", _LONG_MS)
        self._recorder.initialized(name)
        client.close()

    def note_committed(self) -> None:
        place = self._places[0]
        committed = committed_offsets(self._bootstrap, self._group, [place])
        self._recorder.committed(self._group, place, committed[place])

    def _name(self) -> str:
        return f"{self.name}-{next(self._lives)}"

    def _connect(self) -> tuple[str, TransactionalClient]:
        last: Failed | None = None
        deadline = time.monotonic() + _CONNECT_S_MAX
        while time.monotonic() < deadline:
            name = self._name()
            self._recorder.init(name, self.name)
            try:
                made = LIBRARIES[self.name](self._bootstrap, self.name, f"mixed-{name}", self._run.timeout_ms)
            except Failed as failed:
                last = failed
                self._pause.wait(0.1)
                continue
            self._recorder.initialized(name)
            return name, made
        raise AssertionError(f"{self.name} cannot initialize: {last}")

    def _transact(self, name: str, client: TransactionalClient, number: int) -> bool:
        """One transaction; whether the producer can go on."""
        rng, recorder = self._rng, self._recorder
        txn = recorder.begin(name)
        thief: TransactionalClient | None = None
        try:
            client.begin()
            for _ in range(rng.randint(1, 3)):
                self._send(txn, client)
            if rng.random() < 0.12:
                _, thief = self._connect()
            if rng.random() < 0.5:
                recorder.offsets(txn, self._group, self._places[0], number)
                client.offsets(self._group, self._places[0], number)
            if self._run.timeout_ms == _SHORT_MS and rng.random() < 0.2:
                self._pause.wait(_SHORT_MS / 1000 * rng.uniform(0.8, 1.6))
            for _ in range(rng.randint(0, 3)):
                self._send(txn, client)
        except Failed as failed:
            self._run.outcomes[f"{self.name} broken"] += 1
            return self._end(txn, client, commit=False, why=failed) and thief is None
        finally:
            if thief is not None:
                thief.close()
        is_live = self._end(txn, client, commit=rng.random() < 0.75)
        return is_live and thief is None

    def _send(self, txn: str, client: TransactionalClient) -> None:
        place = self._rng.choice(self._places)
        value = f"{txn} {next(self._values)}"
        self._recorder.send(txn, place, value)
        client.send(place, value)
        if self._rng.random() < 0.3:
            client.flush()

    def _end(self, txn: str, client: TransactionalClient, *, commit: bool, why: Failed | None = None) -> bool:
        """Commit or abort; after a commit that failed, abort if the library lets us."""
        verb = "commit" if commit else "abort"
        self._recorder.end(txn, commit=commit)
        try:
            client.end(commit=commit)
        except Failed as failed:
            self._note_results(txn, client)
            self._recorder.ended(txn, Outcome.UNKNOWN, str(failed))
            self._run.outcomes[f"{self.name} {verb} unknown"] += 1
            return commit and self._end(txn, client, commit=False, why=failed)
        self._note_results(txn, client)
        self._recorder.ended(txn, Outcome.OK, str(why or ""))
        self._run.outcomes[f"{self.name} {verb} ok"] += 1
        return True

    def _note_results(self, txn: str, client: TransactionalClient) -> None:
        for value, result in client.results.items():
            self._recorder.result(txn, value, result)
            if isinstance(result, str) and (kind := _ERROR_KIND.match(result)):
                self._run.send_errors[f"{self.name} {kind[1]}"] += 1
        client.results.clear()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--directory", type=Path, help="a new one when none is named")
    parser.add_argument("--listener", default="", help="host:port of the broker")
    options = parser.parse_args()
    end_with_parent()
    directory = options.directory or Path(tempfile.mkdtemp(prefix=f"mixed-{options.seed}-"))
    directory.mkdir(exist_ok=True)
    started = time.monotonic()
    run = MixedRun(options.seed, directory, options.listener or f"127.0.0.1:{free_port()}")
    try:
        anomalies = run.play()
    except Exception:
        anomalies = {"broken run": [traceback.format_exc()]}
    print(json.dumps({
        "seed": run.seed, "directory": str(directory), "seconds": time.monotonic() - started, "anomalies": anomalies,
        "outcomes": run.outcomes, "faults": run.faults, "kills": run.kills,
        "send_errors": run.send_errors,
    }), flush=True)  # fmt: skip
    # Nothing waits for the threads that the libraries have left.
    sys.stderr.flush()
    os._exit(bool(anomalies))


if __name__ == "__main__":
    main()

"""The house rules that a machine can hold: sizes, names, docstrings, documented things."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import work_units
from os_access import accesses
from spark_privacy import private_uses

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "ottla"
FILES = sorted(path for path in SOURCE.rglob("*.py") if "messages" not in path.relative_to(SOURCE).parts)
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
#: not counting `self` and `cls`
POSITIONAL_MAX = 5
SUBJECT_MAX = 72
BANNED = {"utils", "util", "helpers", "helper", "common", "misc", "core", "impl", "abstract", "base"}
#: a hot function that would be slower in pieces; it may not grow
FUNCTION_EXCEPTIONS = {"log/log.py:append": 82}
#: functions of the hot path, which are called for each request, batch or section: a call by name, or an object for
#: several parameters, would make them slower. The list may only shrink.
POSITIONAL_EXCEPTIONS = {
    "broker/fetch/api.py:handle": 7,
    "broker/fetch/counted.py:handle_counted": 8,
    "broker/fetch/traced.py:handle_traced": 8,
    "broker/partitions/manager.py:append": 6,
    "broker/produce/api.py:_append_one": 7,
    "broker/produce/api.py:handle": 7,
    "broker/produce/api.py:handle_counted": 7,
    "broker/produce/traced.py:_handle": 9,
    "log/log.py:append": 8,
    "spark/compiled_scan.py:_scan_sections": 9,
    "wire/fetch.py:partition_start": 8,
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def _names(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def _functions() -> Iterator[tuple[Path, Function]]:
    """Yield each function of the package with its file."""
    for path in FILES:
        for node in ast.walk(_tree(path)):
            if isinstance(node, Function):
                yield path, node


def test_files_stay_short() -> None:
    lines = {_names(path): len(_lines(path)) for path in FILES}
    assert [f"{name}: {n}" for name, n in lines.items() if n > FILE_LINES_MAX] == []


def test_modules_say_what_they_are() -> None:
    assert [_names(path) for path in FILES if not ast.get_docstring(_tree(path))] == [], "modules without docstring"
    assert [_names(path) for path in FILES if path.stem in BANNED] == [], "names that say nothing"


def test_functions_stay_short() -> None:
    long = []
    for path, node in _functions():
        first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
        lines, name = (node.end_lineno or 0) - first.lineno + 1, f"{_names(path)}:{node.name}"
        if lines > FUNCTION_EXCEPTIONS.get(name, FUNCTION_LINES_MAX):
            long.append(f"{name}: {lines}")
    assert long == []


def test_functions_have_few_positional_parameters() -> None:
    counts = [(f"{_names(path)}:{node.name}", len(positional(node))) for path, node in _functions()]
    many = [(name, count) for name, count in counts if count > POSITIONAL_MAX]
    excepted = sorted(POSITIONAL_EXCEPTIONS.items())
    assert [each for each in many if each not in excepted] == [], "make the parameters after the fifth keyword-only"
    assert sorted(many) == excepted, "remove what is not needed from the list of exceptions"


def positional(node: Function) -> list[str]:
    """Return the parameters that a call may pass by position, without `self` and `cls`."""
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def test_formatter_writes_every_signature() -> None:
    skipped = [(path, node) for path, node in _functions() if "fmt: skip" in signature(node, _lines(path))]
    assert [f"{_names(path)}:{node.name}" for path, node in skipped] == []


def signature(node: Function, lines: list[str]) -> str:
    """Return the lines of a function from `def` to its body, and the first line of the body if that is the same one."""
    body = min(each.lineno for each in (node.body[0], *getattr(node.body[0], "decorator_list", ())))
    is_same_line = lines[body - 1][: node.body[0].col_offset].strip() != ""
    return "\n".join(lines[node.lineno - 1 : body if is_same_line else body - 1])


def _only_function(text: str) -> Function:
    (node,) = ast.parse(text).body
    assert isinstance(node, Function)
    return node


def test_formatting_comment_is_found_in_signatures_only() -> None:
    in_signature = [
        "def f(a):  # fmt: skip\n    return a\n",
        "def f(\n    a,\n):  # fmt: skip\n    return a\n",
        "def f(\n    a,\n): ...  # fmt: skip\n",
        "def f(a): return a  # fmt: skip\n",
    ]
    elsewhere = [
        "def f(a):\n    return (a,\n      1)  # fmt: skip\n",
        "def f(a):\n    return a  # fmt: skip\n",
        "@d(1,\n   2)  # fmt: skip\ndef f(a):\n    return a\n",
        "def f(a):\n    @d(1,\n       2)  # fmt: skip\n    def g(): ...\n",
    ]
    found = [
        text for text in in_signature + elsewhere if "fmt: skip" in signature(_only_function(text), text.splitlines())
    ]
    assert found == in_signature


def test_positional_parameters_are_found() -> None:
    found = [
        positional(_only_function(f"def f({each}): ...")) for each in ("self, a", "cls, /, a", "a, /, b, *c, d, **e")
    ]
    assert found == [["a"], ["a"], ["a", "b"]]


#: words of STYLE.md that hide what happens
VAGUE_WORDS = re.compile(r"\b(told|gone|asleep|heavy|whoever|nobody)\b", re.IGNORECASE)


def test_words_say_what_happens() -> None:
    """STYLE.md has the words to use instead."""
    found = [f"{_names(path)}: {word}" for path in FILES for word in VAGUE_WORDS.findall(path.read_text())]
    assert found == []


def test_subjects_of_commits_are_short() -> None:
    """The commits of a branch, before they are on main."""
    command = ["git", "log", "--no-merges", "--format=%s", "main..HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert [subject for subject in done.stdout.splitlines() if len(subject) > SUBJECT_MAX] == []


def test_modules_of_tests_have_different_names() -> None:
    """pytest imports them by name alone: of two with the same name in one run it refuses the second."""
    directories = [path for path in (ROOT / "tests").rglob("*") if path.is_dir() and "__pycache__" not in path.parts]
    modules = [path.name for each in directories for path in each.glob("*.py") if not (each / "__init__.py").exists()]
    assert sorted({name for name in modules if modules.count(name) > 1} - {"conftest.py"}) == []


def test_packages_say_what_they_are() -> None:
    packages = sorted({path.parent for path in FILES if path.parent != SOURCE})
    assert [_names(each) for each in packages if not ast.get_docstring(_tree(each / "__init__.py"))] == []


#: the packages of the broker, which run in the simulation, and its client
SIMULATED = ("model", "wire", "env", "net", "log", "broker", "client/async_connections.py", "client/protocol")
#: the modules of these packages that may reach the operating system, and what they may use
OS_ACCESS: dict[str, set[str]] = {
    # Implementations that the simulation replaces.
    "env/clock.py": {"time"},
    "env/disk.py": {"fcntl", "open", "os"},
    "env/process_figures.py": {"open", "os", "resource", "time"},  # figures of a page, on which nothing depends
    "env/tasks.py": {"concurrent.futures", "threading", "time"},
    "net/network.py": {"create_connection", "create_server", "os", "resource", "socket"},
    "net/peers.py": {"add_reader", "select"},
    "broker/metadata/embedded.py": {"concurrent.futures", "os", "run_in_executor", "sqlite3"},
    # kazoo has a thread too.
    "broker/metadata/zookeeper/connection.py": {"create_connection", "run_in_executor", "ssl"},
    "broker/environment.py": {"os"},  # what the simulation replaces is put together there
    # The event loop of the simulation has its own run_in_executor.
    "broker/partitions/offset_apis.py": {"run_in_executor"},
    "broker/access/authentication.py": {"run_in_executor"},
    # Encryption and the keys for logins; the listeners of a simulation have neither.
    "broker/access/listener_security.py": {"run_in_executor", "secrets", "ssl"},
    "broker/access/peer_logins.py": {"random", "run_in_executor", "threading"},
    "client/async_connections.py": {"ssl"},
    "net/tls.py": {"ssl"},
    # Locks that the event loop and a thread share; a simulation has one thread.
    "log/log_starts.py": {"threading"},
    "log/segment.py": {"threading"},
    "log/directories.py": {"threading"},
    # Processes for large batches and for compaction; those of a simulation are too small for a process.
    "log/cleaner.py": {"os", "read_bytes", "subprocess"},
    "log/opener.py": {"concurrent.futures", "subprocess", "threading"},
    "log/opener_process.py": {"os"},
    # The metrics page and the start of the process, which are no part of a simulation.
    "broker/coordination/metrics.py": {"asyncio.to_thread", "time"},
    "broker/main.py": {"add_reader", "signal"},
    "env/collector.py": {"time"},
    "env/connections.py": {"asyncio.start_server"},
    "env/metrics.py": {"time"},
    "env/metrics_server.py": {"create_server", "socket"},
    "env/otel.py": {"random", "time"},
    "env/process.py": {"resource", "socket", "threading"},
    "env/socket_deadline.py": {"socket", "threading"},
    "env/watchdog.py": {"threading", "time"},
}


def test_operating_system_is_reached_through_interfaces() -> None:
    """A run of the simulation (docs/internals/simulation.md) replays only if no other file reaches a clock or disk."""
    found = {}
    for path in FILES:
        used = {name.split(".")[0] if name.startswith("os.") else name for name in accesses(_tree(path))}
        if used and _names(path).startswith(SIMULATED):
            found[_names(path)] = used
    assert found == OS_ACCESS


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("import time", "time"),
        ("from time import monotonic", "time"),
        ("import random\nrandom.random()", "random"),
        ("import uuid\nuuid.uuid4()", "uuid.uuid4"),
        ("from uuid import uuid4", "uuid.uuid4"),
        ("import os\nos.urandom(4)", "os.urandom"),
        ("open('file')", "open"),
        ("import socket", "socket"),
        ("import asyncio\nasyncio.open_connection('host', 1)", "asyncio.open_connection"),
        ("loop.run_in_executor(None, print)", "run_in_executor"),
        ("from threading import Thread", "threading"),
        ("from concurrent.futures import ThreadPoolExecutor", "concurrent.futures"),
        ("import subprocess", "subprocess"),
        ("import sqlite3", "sqlite3"),
    ],
)
def test_access_to_the_operating_system_is_found(line: str, name: str) -> None:
    assert accesses(ast.parse(line)) == [name]


@pytest.mark.parametrize("line", ["disk.open(path)", "clock.monotonic()", "import os\nos.path.join(a, b)", "time = 1"])
def test_use_of_an_interface_is_allowed(line: str) -> None:
    assert accesses(ast.parse(line)) == []


def test_broad_except_stands_only_at_the_seams() -> None:
    """Elsewhere it may tidy up, and then goes on with what went wrong."""
    # metrics_server.py and web/app.py answer with status 500.
    # interrupts.py, flow_runs.py and exporters/running.py hand the exception to the thread that waits.
    # An exporter and tasks.py report it.
    allowed = {
        "broker/dispatch.py", "broker/broker.py", "env/metrics_server.py", "env/tasks.py", "cli/interrupts.py",
        "pipeline/flow_runs.py", "edge/registry/exporters/running.py", "edge/web/app.py",
    }  # fmt: skip
    for path in FILES:
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.ExceptHandler) and _is_broad(node) and _names(path) not in allowed:
                assert isinstance(node.body[-1], ast.Raise), f"{_names(path)}:{node.lineno}"


def _is_broad(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or ast.unparse(handler.type) in ("Exception", "BaseException")


#: the packages of the broker, the registry and the REST proxy
SERVICES = (*SIMULATED, "client", "edge", "security")
#: modules of these packages that start tasks or threads without `env/tasks.py`, and why none ends without a message
OWN_TASKS = {
    "env/tasks.py": "reports the exceptions of all others",
    "env/connections.py": "reports the exception of a connection",
    "env/socket_deadline.py": "a timer that closes a socket",
    "broker/access/peer_logins.py": "the thread of one request, which completes the future of those that wait",
    "edge/console/clusters.py": "a reading of a cluster, which requests wait for",
    "edge/registry/exporters/running.py": "the thread of one request, which hands its exception to those that wait",
    "edge/registry/service.py": "the records that the reader delivers; a failure ends the process",
    "edge/web/authentication.py": "the result of a thread, which requests wait for",
    "edge/web/server.py": "the server itself, which the process waits for",
}


def test_tasks_are_started_where_their_exceptions_are_reported() -> None:
    """A task that ends with an exception that no code looks at ends without a message, as long as it is referred to."""
    starts = {"create_task", "ensure_future", "Thread", "Timer", "run_coroutine_threadsafe"}
    found = set()
    for path in FILES:
        calls = [node.func for node in ast.walk(_tree(path)) if isinstance(node, ast.Call)]
        names = {call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls}
        if names & starts and _names(path).startswith(SERVICES):
            found.add(_names(path))
    assert found == OWN_TASKS.keys()


def test_private_parts_of_spark_are_used_in_one_file() -> None:
    """`spark/spark_internals.py` has a test for each, and says with which versions of Spark it works."""
    internals = SOURCE / "spark" / "spark_internals.py"
    uses_spark = ("spark/", "pipeline/", "demo/")
    for path in [*FILES, *(ROOT / "src").glob("pyspark_*/*.py")]:
        text, name = path.read_text(), str(path.relative_to(ROOT / "src"))
        if path == internals:
            assert len(private_uses(text)) > 20
        elif name.removeprefix("ottla/").startswith(uses_spark) or name.startswith("pyspark_"):
            assert private_uses(text) == [], name
        elif re.search(r"\b(pyspark|py4j)\b", text):
            assert [use for use in private_uses(text) if re.search(r" '?(pyspark|py4j)\b", use)] == [], name


@pytest.mark.parametrize(
    "line",
    [
        "rows._jdf.count()",
        "SparkContext._active_spark_context.stop()",
        "spark.sparkContext._gateway.jvm",
        "from py4j.protocol import Py4JError",
        "import pyspark.java_gateway",
        "from pyspark.sql.pandas.types import to_arrow_schema",
        "from pyspark.sql.datasource import _private",
        "context.getLocalProperty('streaming.sql.batchId')",
        "settings['x'] = 'org.apache.spark.sql.execution.streaming.Some'",
        "sys.modules['pyspark.sql.worker.plan_data_source_read'].json = None",
        "plan.getClass()",
        "class Listener:\n    def _jlistener(self): ...",
        "os.environ['PYSPARK_GATEWAY_PORT']",
    ],
)
def test_private_part_of_spark_is_found(line: str) -> None:
    assert private_uses(f"def use():\n    pass\n\n{line}\n")


@pytest.mark.parametrize(
    "line",
    [
        "from pyspark.sql.datasource import DataSource",
        "self._jdf_count = 1",
        "range_._replace(end=1)",
        '"""Calls org.apache.spark.sql.Dataset."""',
        "if TYPE_CHECKING:\n    from pyspark.sql.readwriter import DataFrameWriter",
        "settings['x'] = 'org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider'",
    ],
)
def test_public_part_of_spark_is_allowed(line: str) -> None:
    assert private_uses(line) == []


def test_every_metric_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    names = {name for path in FILES for name in re.findall(r'page\.\w+\(\s*"(ottla_\w+)"', path.read_text())}
    assert names
    for name in names:
        assert f"`{name}`" in page or f"`{name}_total`" in page, name


def test_every_decision_has_a_number_and_a_date() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    assert [page.name[:4] for page in pages] == [f"{number:04d}" for number in range(1, len(pages) + 1)]
    for page in pages:
        assert re.search(r"^20\d\d-\d\d-\d\d", page.read_text(), re.M), page.name


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "STYLE.md"])
def test_modules_that_a_page_names_exist(page: str) -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", (ROOT / page).read_text()))
    assert {path for path in named if not any((at / path).is_file() for at in (ROOT, SOURCE))} == set()


def test_every_page_is_in_an_index() -> None:
    """A page has a link in docs/README.md, a decision in docs/decisions/README.md."""
    for index in (ROOT / "docs" / "README.md", ROOT / "docs" / "decisions" / "README.md"):
        is_decision = index.parent.name == "decisions"
        pages = index.parent.glob("0*.md" if is_decision else "[!d]*/*.md")
        linked = set(re.findall(r"\]\(([^)#]+)\)", index.read_text()))
        assert {str(page.relative_to(index.parent)) for page in pages} <= linked, index


#: pages that people read on GitHub and in the site of `make site`
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])


def _text_without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```$|^    .*?$|`[^`\n]+`(?!\])", "", page.read_text(), flags=re.M | re.S)


@cache
def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page; `make site` gives the same."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    found: list[str] = []
    for heading in re.findall(r"^#{1,6} +(.+?)\s*$", text, re.M):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.append(f"{anchor}-{found.count(anchor)}" if anchor in found else anchor)
    return set(found)


def test_links_of_pages_lead_to_files_and_headings() -> None:
    """A link names a file and not a directory, for which the site has no page."""
    for page in PAGES:
        for path, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)", _text_without_code(page)):
            target = page.parent / path if path else page
            assert target.is_file(), f"{page.relative_to(ROOT)}: {path} is not a file"
            assert not anchor or anchor in _anchors(target.resolve()), f"{page.relative_to(ROOT)}: {path}#{anchor}"


def test_every_listed_work_unit_exists() -> None:
    for unit in work_units.SECONDS:
        assert (ROOT / unit).exists(), unit
        assert work_units.unit_of(f"{unit}/test_x.py::test_y" if (ROOT / unit).is_dir() else f"{unit}::test_y") == unit


def test_worker_stores_the_rewritten_assertions_of_its_share(
    pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    files = [tmp_path / f"test_{name}.py" for name in "abc"]
    for file in files:
        file.write_text("def test_one():\n    assert len('x') == 1\n")
    if not work_units.rewrite_share(pytestconfig, files, 0, 2):
        pytest.skip("this release of pytest has other functions for it; tests/work_units.py does nothing then")
    stored = sorted(path.name.partition(".")[0] for path in tmp_path.rglob("*-pytest-*.pyc"))
    assert stored == ["test_a", "test_c"]

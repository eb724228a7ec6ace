"""A broker that cannot start says why in one line and leaves everything as it found it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from crash_campaign import Campaign
from storm import create_topics

from ottla.testing import BrokerProcess

pytestmark = [pytest.mark.crash, pytest.mark.broker]

_START_S_MAX = 90


def refused_start(*options: str | Path, prefix: tuple[str, ...] = ()) -> str:
    """Start a broker that must not start; the one line that it wrote."""
    command = [*prefix, sys.executable, "-m", "ottla", "broker", "--listener", "PLAINTEXT://127.0.0.1:0"]
    done = subprocess.run([*command, *map(str, options)], capture_output=True, text=True, timeout=_START_S_MAX)
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.strip()


def tree(directory: Path) -> dict[str, str]:
    """Every name below a directory with what a broker could change about it."""
    found = {}
    for path in [directory, *sorted(directory.rglob("*"))]:
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        # SQLite opens and removes a file of its own while it looks, which a directory's time and size show.
        changed = f"{status.st_size} {status.st_mtime_ns} {content}" if path.is_file() else ""
        found[str(path)] = f"{status.st_ino} {changed}"
    return found


@pytest.fixture(scope="module")
def left_by_a_broker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a broker that wrote something and was stopped."""
    directory = tmp_path_factory.mktemp("left") / "data"
    with BrokerProcess.start(directory) as broker:
        write_something(broker)
        assert broker.stop() == 0
    return directory


@pytest.fixture
def data(left_by_a_broker: Path, tmp_path: Path) -> Path:
    """A copy that is the test's own."""
    return Path(shutil.copytree(left_by_a_broker, tmp_path / "data"))


def write_something(broker: BrokerProcess) -> None:
    create_topics(broker.bootstrap, {"something": {}})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    producer.produce("something", b"something")
    assert producer.flush(30) == 0


def test_a_directory_in_use_is_refused_and_not_touched(campaign: Campaign) -> None:
    broker = campaign.start({"log.flush.offset.checkpoint.interval.ms": "3600000"})
    write_something(broker)
    before = tree(Path(broker.data))
    line = refused_start("--data", broker.data)
    assert "in use by another broker" in line and broker.data in line
    assert tree(Path(broker.data)) == before


def test_a_port_in_use_is_refused_before_the_data_is_touched(campaign: Campaign, data: Path) -> None:
    broker = campaign.start(data=campaign.directory / "other")
    before = tree(data)
    line = refused_start("--data", data, "-X", f"listeners=PLAINTEXT://{broker.bootstrap}")
    assert str(broker.port) in line
    assert tree(data) == before


def test_a_port_in_use_leaves_no_new_directory_behind(campaign: Campaign) -> None:
    broker = campaign.start()
    refused_start("--data", campaign.directory / "new", "-X", f"listeners=PLAINTEXT://{broker.bootstrap}")
    assert not (campaign.directory / "new").exists()


def test_the_directory_of_another_broker_is_refused(data: Path) -> None:
    before = tree(data)
    line = refused_start("--data", data, "--id", "7")
    assert "belongs to broker 0" in line and "--id 0" in line
    assert tree(data) == before


def test_the_directory_of_another_cluster_is_refused(campaign: Campaign, data: Path) -> None:
    campaign.start(data=campaign.directory / "other").stop()
    other = campaign.directory / "other"
    before = tree(data) | tree(other)
    line = refused_start("-X", f"log.dirs={data},{other}")
    assert "belongs to cluster" in line
    assert tree(data) | tree(other) == before


def test_data_without_its_metadata_is_refused(data: Path) -> None:
    for path in data.glob("metadata.db*"):
        path.unlink()
    before = tree(data)
    assert "metadata.db" in refused_start("--data", data)
    assert tree(data) == before


@pytest.mark.parametrize("damage", ["zeroed", "cut", "text"])
def test_damaged_metadata_is_refused(data: Path, damage: str) -> None:
    metadata = data / "metadata.db"
    content = metadata.read_bytes()
    damaged = {"zeroed": bytes(len(content)), "cut": content[: len(content) // 2], "text": b"not a database\n" * 500}
    metadata.write_bytes(damaged[damage])
    before = tree(data)
    line = refused_start("--data", data)
    assert "metadata.db" in line and "backup" in line
    assert tree(data) == before


@pytest.mark.parametrize("damage", [b"\xff\xfe\x00garbage", b"", b"version=1\n"])
def test_damaged_identity_is_refused(data: Path, damage: bytes) -> None:
    (data / "meta.properties").write_bytes(damage)
    before = tree(data)
    assert "meta.properties" in refused_start("--data", data)
    assert tree(data) == before


def test_a_broker_finds_itself_in_its_metadata_when_its_identity_is_gone(campaign: Campaign, data: Path) -> None:
    """Also what a first start leaves that was killed before it had signed its directory."""
    identity = data / "meta.properties"
    before = identity.read_text()
    identity.unlink()
    campaign.start().stop()
    assert [line for line in before.splitlines() if "directory.id" not in line] == [
        line for line in identity.read_text().splitlines() if "directory.id" not in line
    ]


@pytest.mark.parametrize("mode", [0o000, 0o500])
@pytest.mark.parametrize("option", ["--data", "-Xlog.dirs"])
def test_a_directory_without_permission_is_refused(data: Path, mode: int, option: str) -> None:
    obeying: tuple[str, ...] = ()
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("root may do everything and setpriv is not installed (apt-get install util-linux)")
        # Root without these capabilities is stopped by permissions like everybody else.
        obeying = (setpriv, "--bounding-set", "-dac_override,-dac_read_search")
    before = tree(data)
    data.chmod(mode)
    try:
        line = refused_start(f"{option}={data}", prefix=obeying)
    finally:
        data.chmod(0o755)
    assert str(data) in line
    assert tree(data) == before


def test_a_file_where_the_directory_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert str(tmp_path / "file") in refused_start("--data", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"

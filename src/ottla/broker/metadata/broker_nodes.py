"""The nodes of brokers in the metadata store: those that are alive, and the last starts of all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.broker.metadata.nodes import incarnation_of
from ottla.broker.metadata.store import Node
from ottla.model.types import Endpoint, parse_endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    """A broker that is alive: its node in /brokers/ids exists and belongs to its latest start."""

    broker_id: int
    #: ``created`` of the node: higher after every registration
    epoch: int
    #: advertised endpoints, at least one
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    #: random, new at every start of the broker
    incarnation: bytes
    #: lowest and highest supported level by the name of the feature
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def endpoint(self, listener: str) -> Endpoint | None:
        """Return the advertised endpoint of a listener, None if the broker does not have this listener."""
        return next((each for each in self.endpoints if each.name == listener), None)


class RegisteredBroker(NamedTuple):
    """The addresses and the rack with which a broker was last started, whether it is alive or not."""

    endpoints: tuple[Endpoint, ...]
    rack: str | None

    def endpoint(self, listener: str) -> Endpoint | None:
        """Return the advertised endpoint of a listener, None if the broker does not have this listener."""
        return next((each for each in self.endpoints if each.name == listener), None)


class RegisteredDirs(NamedTuple):
    """The log directories of a broker in /brokers/registered/N."""

    #: incarnation of the last run whose directories are known
    run: str
    #: by directory id: incarnation of the last run that used the directory
    last_runs: Mapping[str, str]
    #: ids of directories that this run could not use, and in whose place it created no logs
    unusable: tuple[str, ...] = ()
    #: by directory id: its absolute path when it was last used; earlier releases wrote none
    paths: Mapping[str, str] = {}


def broker_of(broker_id: int, node: Node) -> BrokerView:
    """Return the broker of a node in /brokers/ids. Raise one of MALFORMED."""
    data = json.loads(node.value)
    features = {
        str(name): (int(levels["min_version"]), int(levels["max_version"]))
        for name, levels in (data.get("features") or {}).items()
    }
    rack = data.get("rack")
    if not (endpoints := tuple(map(parse_endpoint, data["endpoints"]))):
        raise ValueError("the broker has no endpoints")
    return BrokerView(
        broker_id=broker_id, epoch=node.created, endpoints=endpoints, rack=None if rack is None else str(rack),
        incarnation=incarnation_of(node.value), features=features,
    )  # fmt: skip


def registered_broker_of(value: bytes) -> RegisteredBroker | None:
    """Return the addresses and the rack in the value of /brokers/registered/N; None if an earlier release wrote it."""
    data = json.loads(value)
    if "endpoints" not in data:
        return None
    rack = data.get("rack")
    return RegisteredBroker(tuple(map(parse_endpoint, data["endpoints"])), None if rack is None else str(rack))


def registered_dirs_of(value: bytes) -> RegisteredDirs:
    """Return the log directories in the value of /brokers/registered/N. Raise one of MALFORMED.

    A broker of an earlier release wrote none: its directories are recognised by its incarnation.
    """
    data = json.loads(value)
    dirs = {str(each): str(run) for each, run in data.get("log_dirs", {}).items()}
    run = str(data["log_dirs_run"] if "log_dirs_run" in data else data["incarnation"])
    paths = {str(each): str(path) for each, path in data.get("log_dirs_paths", {}).items()}
    return RegisteredDirs(run, dirs, tuple(map(str, data.get("log_dirs_unusable", ()))), paths)

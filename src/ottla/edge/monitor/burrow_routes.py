"""Burrow's HTTP routes, version 3, with its paths, members, messages and status codes.

A verdict is used again for `expire.cache` seconds, as Burrow does. DELETE forgets the commits of a group, as in Burrow:
it deletes nothing in the cluster, and the next commit brings the group back.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ottla.edge.monitor.clusters import MonitoredCluster, MonitoredClusters
from ottla.edge.monitor.settings import MonitorSettings
from ottla.edge.web.app import Handler, HttpError, Operation
from ottla.edge.web.json_schemas import BOOLEAN, INTEGER, TEXT, TEXTS, list_of, map_of, object_of, or_null
from ottla.lag.burrow import Commit, GroupStatus, PartitionStatus, Status
from ottla.model.types import TopicPartition

_CACHED_MAX: Final = 10_000
_LEVELS: Final = {
    "debug": logging.DEBUG, "trace": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING,
    "warn": logging.WARNING, "error": logging.ERROR, "fatal": logging.CRITICAL,
}  # fmt: skip
_NAMES: Final = {
    logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warn", logging.ERROR: "error",
    logging.CRITICAL: "fatal",
}  # fmt: skip
_TAG: Final = "Burrow (v3)"

_REQUEST: Final = object_of({"url": TEXT, "host": TEXT})
_HEAD: Final[Mapping[str, Any]] = {"error": BOOLEAN, "message": TEXT, "request": _REQUEST}
_COMMIT: Final = object_of(
    {"offset": INTEGER, "timestamp": INTEGER, "observedAt": INTEGER, "lag": {"type": ["integer", "null"]}}
)
_PARTITION: Final = object_of({
    "topic": TEXT, "partition": INTEGER, "owner": TEXT, "client_id": TEXT, "status": TEXT, "start": or_null(_COMMIT),
    "end": or_null(_COMMIT), "current_lag": INTEGER, "complete": {"type": "number"},
})  # fmt: skip
_STATUS: Final = object_of({
    "cluster": TEXT, "group": TEXT, "status": TEXT, "complete": {"type": "number"},
    "partitions": list_of(_PARTITION), "partition_count": INTEGER, "maxlag": or_null(_PARTITION), "totallag": INTEGER,
})  # fmt: skip
_CONSUMED: Final = object_of({
    "offsets": list_of(or_null(_COMMIT)), "owner": TEXT, "client_id": TEXT, "current-lag": INTEGER,
})  # fmt: skip


class NotFound(HttpError):
    """An error in Burrow's form."""

    def __init__(self, message: str, status: int = 404) -> None:
        super().__init__(status, status, message)


class BurrowRoutes:
    """Handlers of Burrow's routes."""

    def __init__(self, clusters: MonitoredClusters, settings: MonitorSettings) -> None:
        self._clusters = clusters
        self._settings = settings
        self._host = socket.gethostname()
        #: cluster and group -> when it was evaluated, and the verdict
        self._cache: dict[tuple[str, str], tuple[float, GroupStatus]] = {}

    def operations(self) -> list[Operation]:
        """Return the rows of the table of operations."""
        cluster, topic, group = "/v3/kafka/{cluster}", "/topic/{topic}", "/consumer/{group}"
        get = self._get
        rows = [
            _plain("/burrow/admin", self.admin, "Say that the process runs."),
            _plain("/burrow/admin/ready", self.ready, "Say whether every cluster was read once.", {503: TEXT}),
            get("/v3/kafka", self.list_clusters, "List the clusters", {"clusters": TEXTS}),
            get(cluster, self.get_cluster, "Get the settings of a cluster", {"module": map_of({})}),
            get(f"{cluster}/topic", self.list_topics, "List topics", {"topics": TEXTS}),
            get(cluster + topic, self.get_topic, "Get the log ends of a topic", {"offsets": list_of(INTEGER)}),
            get(f"{cluster}{topic}/consumers", self.topic_groups, "List groups of a topic", {"consumers": TEXTS}),
            get(f"{cluster}/consumer", self.list_groups, "List the groups", {"consumers": TEXTS}),
            get(cluster + group, self.get_group, "Get the commits of a group",
                {"topics": map_of(list_of(_CONSUMED))}),
            get(f"{cluster}{group}/status", partial(self.status, every=False),
                "Get the verdict about a group, and its partitions that are not OK", {"status": _STATUS}),
            get(f"{cluster}{group}/lag", partial(self.status, every=True),
                "Get the verdict about a group, and all its partitions", {"status": _STATUS}),
            get("/v3/admin/loglevel", self.get_level, "Get the log level", {"level": TEXT}),
        ]  # fmt: skip
        for kind in ("storage", "evaluator", "cluster", "consumer", "notifier"):
            members = {"coordinator": TEXT, "modules": TEXTS}
            rows.append(
                get(f"/v3/config/{kind}", partial(self.list_modules, kind=kind), f"List {kind} modules", members)
            )
        rows += [
            get("/v3/config", self.get_config, "Get the settings of the process", {"general": map_of({})}),
            get("/v3/config/storage/{name}", self.get_storage, "Get a storage module", {"module": map_of({})}),
            get("/v3/config/evaluator/{name}", self.get_evaluator, "Get an evaluator module", {"module": map_of({})}),
            get("/v3/config/consumer/{name}", self.get_consumer, "Get a consumer module", {"module": map_of({})}),
            get("/v3/config/cluster/{cluster}", self.get_cluster, "Get a cluster module", {"module": map_of({})}),
            get("/v3/config/notifier/{name}", self.get_notifier, "Get a notifier module", {"module": map_of({})}),
            self._row("DELETE", cluster + group, self.delete_group, "Forget the commits of a group"),
            self._row("DELETE", cluster + group + topic, self.delete_group, "Forget the commits of a group in a topic"),
            self._row(
                "POST", "/v3/admin/loglevel", self.set_level, "Set the log level", body=object_of({"level": TEXT})
            ),
        ]
        return rows

    def _get(self, path: str, handler: Handler, summary: str, members: Mapping[str, Any]) -> Operation:
        return self._row("GET", path, handler, summary, members=members)

    def _row(
        self,
        method: str,
        path: str,
        handler: Handler,
        summary: str,
        *,
        members: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Operation:
        return Operation(
            method=method, path=path, handler=partial(self._handle, handler), summary=f"{summary}.", tag=_TAG,
            body=body, answers={200: object_of({**_HEAD, **(members or {})})}, errors={404: "There is no such object."},
        )  # fmt: skip

    async def _handle(self, handler: Handler, request: Request) -> Response:
        try:
            return await handler(request)
        except NotFound as error:
            body = {"error": True, "message": error.message, "request": self._request_info(request)}
            return Response(_encode(body), error.status, media_type="application/json")

    # -- the process --------------------------------------------------------------------------------------------------

    async def admin(self, request: Request) -> Response:
        return PlainTextResponse("GOOD")

    async def ready(self, request: Request) -> Response:
        if all(each.last.read_at_ms for each in self._clusters.by_name.values()):
            return PlainTextResponse("READY")
        return PlainTextResponse("STARTING", 503)

    async def get_level(self, request: Request) -> Response:
        level = logging.getLogger().level
        return self._answer(request, "log level returned", level=_NAMES.get(level, logging.getLevelName(level).lower()))

    async def set_level(self, request: Request) -> Response:
        try:
            body = json.loads(await request.body())
            name = str(body["level"]).lower()
        except (ValueError, TypeError, KeyError):
            raise NotFound("could not decode message body", 400) from None
        if name not in _LEVELS:
            raise NotFound("unknown log level")
        logging.getLogger().setLevel(_LEVELS[name])
        return self._answer(request, "set log level")

    # -- clusters and topics ------------------------------------------------------------------------------------------

    async def list_clusters(self, request: Request) -> Response:
        return self._answer(request, "cluster list returned", clusters=[*self._clusters.by_name])

    async def get_cluster(self, request: Request) -> Response:
        cluster = self._cluster(request, "cluster module not found")
        module = {
            "class-name": "kafka", "servers": cluster.bootstrap.split(","), "client-profile": _PROFILE,
            "topic-refresh": self._settings.interval_seconds, "offset-refresh": self._settings.interval_seconds,
        }  # fmt: skip
        return self._answer(request, "cluster module detail returned", module=module)

    async def list_topics(self, request: Request) -> Response:
        reading = await self._cluster(request, "cluster not found").fresh()
        names = dict.fromkeys(name.topic for name in reading.partitions)
        return self._answer(request, "topic list returned", topics=[*names])

    async def get_topic(self, request: Request) -> Response:
        missing = "cluster or topic not found"
        reading = await self._cluster(request, missing).fresh()
        topic = request.path_params["topic"]
        if TopicPartition(topic, 0) not in reading.partitions:
            raise NotFound(missing)
        ends = []
        number = 0
        while (name := TopicPartition(topic, number)) in reading.partitions:
            if name in reading.log_ends:
                ends.append(reading.log_ends[name])
            number += 1
        return self._answer(request, "topic offsets returned", offsets=ends)

    async def topic_groups(self, request: Request) -> Response:
        reading = await self._cluster(request, "cluster not found").fresh()
        topic = request.path_params["topic"]
        found = [
            name
            for name, each in reading.groups.items()
            if any(row.name.topic == topic for row in each.verdict.partitions)
        ]
        return self._answer(request, "consumers of topic returned", consumers=found)

    # -- groups -------------------------------------------------------------------------------------------------------

    async def list_groups(self, request: Request) -> Response:
        reading = await self._cluster(request, "cluster not found").fresh()
        found = [name for name, each in reading.groups.items() if each.status is not Status.NOTFOUND]
        return self._answer(request, "consumer list returned", consumers=found)

    async def get_group(self, request: Request) -> Response:
        cluster = self._cluster(request, "cluster or consumer not found")
        reading = await cluster.fresh()
        group = reading.groups.get(request.path_params["group"])
        if group is None or group.status is Status.NOTFOUND:
            raise NotFound("cluster or consumer not found")
        topics: dict[str, list[dict[str, Any]]] = {}
        windows = cluster.reader.histories
        for each in group.verdict.partitions:
            window = windows.window(group.group_id, each.name)
            commits = list(window.commits) if window is not None else []
            missing = self._settings.intervals - len(commits) if commits else 0
            row = {
                "offsets": [None] * missing + [_commit(one) for one in commits], "owner": each.owner,
                "client_id": each.client_id, "current-lag": each.current_lag,
            }  # fmt: skip
            topics.setdefault(each.name.topic, []).append(row)
        return self._answer(request, "consumer detail returned", topics=topics)

    async def status(self, request: Request, *, every: bool) -> Response:
        name = request.path_params["group"]
        cluster = self._clusters.by_name.get(request.path_params["cluster"])
        verdict = GroupStatus(group_id=name, status=Status.NOTFOUND, complete=1.0)
        if cluster is not None:
            verdict = await self._verdict(cluster, name)
        partitions = [each for each in verdict.partitions if every or each.status > Status.OK]
        worst = verdict.max_lag
        status = {
            "cluster": request.path_params["cluster"], "group": name, "status": verdict.status.name,
            "complete": _share(verdict.complete), "partitions": [_partition(each) for each in partitions],
            "partition_count": len(verdict.partitions), "maxlag": None if worst is None else _partition(worst),
            "totallag": verdict.total_lag,
        }  # fmt: skip
        code = 404 if verdict.status is Status.NOTFOUND else 200
        return self._answer(request, "consumer status returned", code, status=status)

    async def _verdict(self, cluster: MonitoredCluster, name: str) -> GroupStatus:
        key, now = (cluster.name, name), time.monotonic()
        known = self._cache.get(key)
        if known is not None and now - known[0] <= self._settings.expire_cache:
            return known[1]
        group = (await cluster.fresh()).groups.get(name)
        verdict = (
            group.verdict if group is not None else GroupStatus(group_id=name, status=Status.NOTFOUND, complete=1.0)
        )
        if verdict.status is not Status.NOTFOUND:
            if len(self._cache) >= _CACHED_MAX:
                self._cache.clear()
            self._cache[key] = (now, verdict)
        return verdict

    async def delete_group(self, request: Request) -> Response:
        cluster = self._clusters.by_name.get(request.path_params["cluster"])
        if cluster is not None:
            cluster.forget(request.path_params["group"], request.path_params.get("topic"))
            self._cache.pop((cluster.name, request.path_params["group"]), None)
        return self._answer(request, "consumer group removed")

    # -- settings -----------------------------------------------------------------------------------------------------

    async def get_config(self, request: Request) -> Response:
        settings = self._settings
        return self._answer(
            request, "main config returned",
            general={"pidfile": "", "stdout-logfile": "",
                     "access-control-allow-origin": ",".join(settings.access_control_allow_origin)},
            logging={"filename": "", "max-size": 0, "max-backups": 0, "max-age": 0, "use-local-time": False,
                     "use-compression": False, "level": settings.log_level.lower()},
            zookeeper={"servers": [], "timeout": 0, "root-path": ""},
            httpserver={"default": {"address": ",".join(settings.listeners), "tls": "", "timeout": 0}},
        )  # fmt: skip

    async def list_modules(self, request: Request, *, kind: str) -> Response:
        modules = {"cluster": [*self._clusters.by_name], "consumer": [*self._clusters.by_name], "notifier": []}
        return self._answer(
            request, "module list returned", coordinator=kind, modules=modules.get(kind, ["default"])
        )  # fmt: skip

    async def get_storage(self, request: Request) -> Response:
        _check_default(request, "storage")
        settings = self._settings
        module = {
            "class-name": "inmemory", "intervals": settings.intervals, "min-distance": settings.min_distance,
            "group-allowlist": settings.group_allowlist, "expire-group": settings.expire_group,
        }  # fmt: skip
        return self._answer(request, "storage module detail returned", module=module)

    async def get_evaluator(self, request: Request) -> Response:
        _check_default(request, "evaluator")
        module = {"class-name": "caching", "expire-cache": self._settings.expire_cache}
        return self._answer(request, "evaluator module detail returned", module=module)

    async def get_consumer(self, request: Request) -> Response:
        cluster = self._clusters.by_name.get(request.path_params["name"])
        if cluster is None:
            raise NotFound("consumer module not found")
        module = {
            "class-name": "kafka", "cluster": cluster.name, "servers": cluster.bootstrap.split(","),
            "group-allowlist": self._settings.group_allowlist, "zookeeper-path": "", "zookeeper-timeout": 0,
            "client-profile": _PROFILE, "offsets-topic": "__consumer_offsets", "start-latest": False,
        }  # fmt: skip
        return self._answer(request, "consumer module detail returned", module=module)

    async def get_notifier(self, request: Request) -> Response:
        raise NotFound("notifier module not found")

    # -- answers ------------------------------------------------------------------------------------------------------

    def _cluster(self, request: Request, missing: str) -> MonitoredCluster:
        found = self._clusters.by_name.get(request.path_params["cluster"])
        if found is None:
            raise NotFound(missing)
        return found

    def _answer(self, request: Request, message: str, code: int = 200, /, **members: Any) -> Response:
        body = {"error": False, "message": message, **members, "request": self._request_info(request)}
        return Response(_encode(body), code, media_type="application/json")

    def _request_info(self, request: Request) -> dict[str, str]:
        return {"url": request.url.path, "host": self._host}


#: the client of the cluster has no profile with a name
_PROFILE: Final = {"name": "", "client-id": "ottla-monitor", "kafka-version": "", "tls": None, "sasl": None}
_encode: Final[Callable[[Any], str]] = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))


def _check_default(request: Request, kind: str) -> None:
    if request.path_params["name"] != "default":
        raise NotFound(f"{kind} module not found")


def _share(value: float) -> float | int:
    """Return a number as Go writes it: 1 and not 1.0."""
    return int(value) if value == int(value) else value


def _commit(commit: Commit) -> dict[str, Any]:
    return {
        "offset": commit.offset, "timestamp": commit.timestamp_ms, "observedAt": commit.observed_ms // 1000 * 1000,
        "lag": commit.lag,
    }  # fmt: skip


def _partition(each: PartitionStatus) -> dict[str, Any]:
    return {
        "topic": each.name.topic, "partition": each.name.partition, "owner": each.owner, "client_id": each.client_id,
        "status": each.status.name, "start": None if each.start is None else _commit(each.start),
        "end": None if each.end is None else _commit(each.end), "current_lag": each.current_lag,
        "complete": _share(each.complete),
    }  # fmt: skip


def _plain(
    path: str, handler: Handler, summary: str, answers: Mapping[int, Mapping[str, Any]] | None = None
) -> Operation:
    return Operation(
        method="GET", path=path, handler=handler, summary=summary, tag=_TAG, produces=("text/plain",),
        answers={200: TEXT, **(answers or {})}, is_public=True,
    )  # fmt: skip

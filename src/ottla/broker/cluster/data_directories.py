"""The data directories of a broker when it starts: who owns them, and which of them can be used."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ottla.broker.cluster.incarnation import read_runs
from ottla.env.advice import directory_advice
from ottla.env.disk import Disk
from ottla.log.directories import check_owner, read_meta
from ottla.log.store import LogStore
from ottla.model.errors import StartError


def lock_data(disk: Disk, store: LogStore, *, broker_id: int, metadata: str | None) -> str | None:
    """Lock the directories that can be used. Return the id of the cluster they belong to; None if all are new.

    ``metadata`` is the path of the metadata file of a broker that is alone, in the first directory. In a cluster any
    directory may be unusable, or its disk may have been replaced by an empty one.

    Raise StartError if no directory can be used, if one belongs to another cluster or broker, or if one is a copy.
    """
    at = store.dirs[0].path
    try:
        metas: dict[str, dict[str, str]] = {}
        ids: dict[str, str] = {}
        for directory in store.dirs:
            at = directory.path
            try:
                meta = read_meta(disk, at)
                ids[at] = meta.get("directory.id") or read_runs(disk, at).directory_id
                metas[at] = meta
            except OSError as error:
                store.set_unusable(directory, error)
        known = _known_cluster_id(disk, metas, metadata)
        for path, meta in metas.items():
            check_owner(meta, path, known, broker_id)
        _check_ids({path: ids[path] for path in metas})
        store.lock()
    except OSError as error:
        where = next((each.path for each in store.dirs if (error.filename or at).startswith(each.path)), at)
        advice = directory_advice(error, option="--data")
        raise StartError(f"data directory {where} cannot be used: {advice}") from None
    return known


def _check_ids(ids: Mapping[str, str]) -> None:
    """Raise StartError if two directories have the same id: the broker could not tell which one has its logs."""
    path_of: dict[str, str] = {}
    for path, directory_id in ids.items():
        first = path_of.setdefault(directory_id or path, path)
        if first != path:
            raise StartError(
                f"data directories {first} and {path} have the same directory id {directory_id}: one of them is a copy "
                "of the other, or both paths lead to the same directory; remove the copy from log.dirs, and delete all "
                "files in it before you use it as another log directory"
            )


def _known_cluster_id(disk: Disk, metas: dict[str, dict[str, str]], metadata: str | None) -> str | None:
    if metadata is None:
        return next((meta["cluster.id"] for meta in metas.values() if meta), None)
    first = os.path.dirname(metadata)
    cluster_id = metas[first].get("cluster.id")
    if cluster_id is not None and not disk.file_size(metadata):
        raise StartError(
            f"data directory {first} belongs to cluster {cluster_id}, whose metadata ({os.path.basename(metadata)}) is "
            "missing or empty; name the directory that has the file first in log.dirs, restore it from a backup, or "
            "choose another --data directory if this one is another system's"
        )
    return cluster_id

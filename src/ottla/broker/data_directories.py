"""The data directories of a broker when it starts: who owns them, and which of them can be used."""

from __future__ import annotations

import os

from ottla.env.advice import directory_advice
from ottla.env.disk import Disk
from ottla.log.directories import check_owner, read_meta
from ottla.log.store import LogStore
from ottla.model.errors import StartError


def lock_data(disk: Disk, store: LogStore, *, broker_id: int, metadata: str | None) -> str | None:
    """Lock the directories that can be used. Return the id of the cluster they belong to; None if all are new.

    ``metadata`` is the path of the metadata file of a broker that is alone, in the first directory. In a cluster any
    directory may be unusable, or its disk may have been replaced by an empty one.

    Raise StartError if no directory can be used, or if one belongs to another cluster or broker.
    """
    at = store.dirs[0].path
    try:
        metas: dict[str, dict[str, str]] = {}
        for directory in store.dirs:
            at = directory.path
            try:
                metas[at] = read_meta(disk, at)
            except OSError as error:
                store.set_unusable(directory, error)
        known = _known_cluster_id(disk, metas, metadata)
        for path, meta in metas.items():
            check_owner(meta, path, known, broker_id)
        store.lock()
    except OSError as error:
        where = next((each.path for each in store.dirs if (error.filename or at).startswith(each.path)), at)
        advice = directory_advice(error, option="--data")
        raise StartError(f"data directory {where} cannot be used: {advice}") from None
    return known


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

"""Which folder has the log of a partition, if several log directories have a folder of it.

- A broker that moves a log may end between two renames: then both logs have the same batches.
- A directory was absent for some time, and its logs were begun anew in others. The log of the directory that has come
  back is complete only if the metadata still say that the replica is lost or offline since then. If they do not, the
  newer log is.
- A directory failed while the broker ran, its partition was moved to other brokers and came back, and its log was begun
  anew in another directory. That failure began a new run of the other directories
  (`broker/cluster/failed_directories.py`), so this is the same.
- One of the folders belongs to an earlier topic with the same name.
- A folder stayed in a directory of an earlier release that was offline meanwhile: it has no entry in the clean stop
  file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ottla.env.disk import Disk, read_derived_file
from ottla.log.checkpoints import read_clean_stop
from ottla.log.directories import LogDir
from ottla.log.folders import METADATA, PartitionSpec, topic_id_in
from ottla.model.types import TopicPartition, topic_id_text


def choose_duplicates(
    disk: Disk, specs: Mapping[TopicPartition, PartitionSpec], found: Mapping[TopicPartition, Sequence[LogDir]]
) -> dict[TopicPartition, str]:
    """Return the path of the directory whose folder is the log, for each of the partitions that were found."""
    paths = dict.fromkeys(directory.path for directories in found.values() for directory in directories)
    clean = {path: read_clean_stop(disk, path) or {} for path in paths}

    def rank(directory: LogDir, spec: PartitionSpec) -> tuple[bool, bool, int, bool, bool]:
        file = os.path.join(directory.path, str(spec.name), METADATA)
        # A power failure may have taken the id of a log that has never had records.
        found, wanted = topic_id_in(read_derived_file(disk, file)), topic_id_text(spec.topic_id)
        was_used = str(spec.name) in clean[directory.path]
        is_last = directory.run == spec.last_run != -1
        return found in (None, wanted), is_last, directory.content, found == wanted, was_used

    return {
        name: max(directories, key=lambda each, spec=specs[name]: rank(each, spec)).path  # type: ignore[misc]
        for name, directories in found.items()
    }

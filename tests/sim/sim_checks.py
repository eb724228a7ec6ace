"""Every check of the simulation, and the planted bug that it must report first (`make sim-planted`).

``World.violation`` accepts no other name. The checks of ``ottla.testing.history`` that are not listed need clients that
read within transactions, which the simulation does not have: precommitted-read and cycle.
"""

from __future__ import annotations

#: by check: the bug that shows that it finds something
CHECKS = {
    # what clients see, while they run
    "acknowledged-unsynced": "acknowledge-before-sync",
    "acknowledged-by-replaced-leader": "lease-is-not-checked",
    "client-error": "offset-fetch-lacks-partitions",
    "committed-offset-lost": "coordinator-replies-before-sync",
    "committed-offset-never-sent": "committed-offset-is-one-too-high",
    "config-lost": "config-is-not-stored",
    "damaged-batch": "torn-batch-is-kept",
    "delete-not-answered": "followers-ignore-the-log-start",
    "no-progress": "marker-is-not-repeated",
    "records-not-deleted": "deletions-do-nothing",
    "refused-producer": "recovery-forgets-producers",
    "told-high-watermark-moved-back": "elected-but-not-applied",
    "told-log-start-moved-back": "follower-log-starts-are-not-awaited",
    "topic-lost": "partitions-are-not-stored",
    "two-owners": "members-get-the-first-assignment",
    # topics with the name of a deleted one
    "record-of-another-topic": "folder-of-an-earlier-topic-is-used",
    "recreated-topic-lacks-acknowledged": "followers-of-an-earlier-topic-count",
    # processes
    "exception": "writers-are-expected",
    "process-failed": "recovery-fails-with-a-traceback",
    "stuck": "replies-leave-before-files-are-written",
    # the state of brokers, while they run
    "component-state": "fetchers-keep-removed-partitions",
    "epoch-moved-back": "suspended-leader-forgets-its-epoch",
    "high-watermark-moved-back": "high-watermark-moves-back",
    "log-start-moved-back": "truncation-moves-the-log-start",
    "offsets-out-of-order": "follower-takes-any-high-watermark",
    "stable-offset-moved-back": "high-watermark-moves-back-in-election",
    "synced-not-written": "truncation-keeps-the-synced-end",
    # the metadata store, at each change
    "controller-epoch-moved-back": "controller-epoch-begins-anew",
    "former-controller-decided": "elections-without-controller-fence",
    "isr-invalid": "last-replica-leaves-the-isr",
    "leader-not-in-sync": "new-leader-is-not-in-the-isr",
    "leader-without-epoch": "elections-keep-the-epoch",
    "overlooked-change": "controller-ignores-changed-topics",
    "store-epoch-moved-back": "isr-changes-keep-the-partition-epoch",
    # replicas, while they run
    "eligible-differs": "kip-279",
    "eligible-lacks-acknowledged": "kip-101",
    "eligible-lacks-committed": "high-watermark-of-the-leader-alone",
    "leader-below-high-watermark": "new-leader-truncates-to-its-high-watermark",
    "leader-lacks-acknowledged": "kip-903",
    "leader-lacks-committed": "new-leader-truncates-to-its-high-watermark",
    "two-leaders": "old-leader-goes-on-in-the-new-epoch",
    # replicas and logs, at the end
    "epochs-differ": "follower-notes-the-last-epoch-only",
    "epochs-out-of-order": "batches-get-the-epoch-before",
    "gap-in-offsets": "appends-skip-an-offset",
    "gap-in-sequences": "batches-get-another-sequence-number",
    "not-in-sync": "followers-sync-only-for-writers",
    "replay-differs": "offset-records-round-the-commit-time",
    "replicas-differ": "follower-changes-sealed-batches",
    "two-markers": "markers-are-written-twice",
    "two-results": "markers-of-both-results-are-written",
    # the history, at the end
    "aborted-read": "aborted-transactions-are-not-listed",
    "deleted-read": "deleted-records-are-returned",
    "duplicate": "duplicates-are-appended",
    "hanging-transaction": "marker-is-skipped",
    "inconsistent-offsets": "sync-covers-later-writes",
    "lost-write": "first-record-of-a-segment-is-not-readable",
    "nonmonotonic-poll": "reads-begin-too-early",
    "nonmonotonic-send": "sequence-gaps-are-accepted",
    "open-read": "open-transactions-are-readable",
    "phantom": "leader-appends-records-of-its-own",
    "poll-skip": "epoch-is-not-increased",
    "torn-offsets": "transactional-offsets-are-discarded",
    "torn-transaction": "last-partition-is-aborted",
    "unseen": "last-record-is-not-readable",
    "zombie-commit": "init-producer-does-not-fence",
    "zombie-write": "fenced-producer-is-accepted",
    # one log (`sim_log.py`)
    "other-value": "truncations-are-not-synced",
    "synced-record-lost": "sync-covers-truncated-bytes",
}

"""Errors of the commit of a batch into topics. Each text names the next step for the user.

CommitError               this call did not commit the batch
├── DriverFenced          another driver has become the producer of this name
├── TransactionTimedOut   the broker aborted the transaction, because its timeout was over
├── BatchTooLarge         the batch has more bytes than one transaction may have
└── CheckpointMismatch    the topic holds this batch, but made of other source offsets
"""

from __future__ import annotations


class CommitError(Exception):
    """This call did not commit the batch; the text says what to do."""


class DriverFenced(CommitError):
    """Another driver has become the producer of this name."""


class TransactionTimedOut(CommitError):
    """The broker aborted the transaction, because its timeout was over."""


class BatchTooLarge(CommitError):
    """The batch has more bytes than one transaction may have."""


class CheckpointMismatch(CommitError):
    """The topic holds this batch, but made of other source offsets."""

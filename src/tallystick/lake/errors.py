"""Errors of lake tables. Each says what happened, what it means for the data, and what to do.

    LakeError
      UnusableTable     the table is missing, or has something that this writer would break; nothing was begun
      SchemaDiffers     rows and table do not fit; nothing was written
      EntryLost         the table knows that something was decided, and its log no longer says what
      BadEntry          a commit has an entry that this version cannot read
      TableBusy         other writers' commits came first, again and again; nothing was decided

All of them can be pickled.
"""

from tallystick.kernel.errors import Conflict, TallystickError


class LakeError(TallystickError):
    """Base class; the text is for the user."""


class UnusableTable(LakeError):
    """The table does not exist, or a writer like this one must not write it. Nothing was begun."""


class SchemaDiffers(LakeError):
    """The rows of a batch do not fit the table. Nothing was written."""


class EntryLost(LakeError):
    """The table's log no longer has the commit that says what was decided. Nothing was changed."""


class BadEntry(LakeError):
    """The entry in a commit is not of this version."""


class TableBusy(LakeError, Conflict):
    """Other writers have committed first in every attempt. Nothing was decided."""

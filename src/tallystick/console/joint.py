"""Both halves of each transaction side by side: what is known, what it means, and what to do. Pure.

A transactional id has up to four views: its coordinator's description, the partitions where data of it is
open, a row in a store, and a place in a decision of Spark. The rules that compare them are elsewhere, and are
asked here: `admin.hanging` for partitions against the coordinator, `dualwrite.recovery.compare_halves` for the
row against the cluster, `spark.protocol` for participants of a decision. This module adds the one judgement
that none of them makes: whether somebody has to act, and which command does it.

    state of the views                                              health        what to do
    open, within its time, or between two steps of a live writer    OK            nothing
    decided (in the database or by Spark) and not ended yet         WAITING       nothing yet; RECOVER later
    in doubt for longer than the grace period, a store names it     RECOVER       transactions resolve --store
    in doubt for longer than that, in a decision or beside one      RECOVER       transactions resolve --prefix
    in doubt, and no store or decision that is known here names it  ORPHAN        name its store; complete by token
    the halves differ (TEAR, LACK), or neither end is right (HALT)  BROKEN        read what the verdict says
    no coordinator will ever end it                                 HANGING       transactions abort
    it could not be judged                                          UNKNOWN       what failed, and how to ask again
"""

"""Actions from a page: a dry run, then a form in which the id is typed, then one attempt (docs/adr/0058).

    request                     what may be done, as a URL and as a command line     pure
    readings, plan, planning    what is true, and the dry run that follows from it   pure
    sides                       the state of each side, and objections               pure
    offset_planning             the same for a group's offsets                       pure
    results                     done, refused, outcome unknown                       pure
    pending                     confirmed dry runs that may come back, each once     pure
    config                      clients, stores and limits
    reader                      reads afresh what a dry run needs
    execution                   calls what the command line calls
    audit                       one line before anything is sent, one after
    service                     joins them: one action at a time

Nothing here decides a transaction: the decision is read from where the commands have it.
"""

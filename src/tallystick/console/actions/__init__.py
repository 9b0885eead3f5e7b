"""Actions from a page: a dry run, then a form in which the id is typed, then one attempt (docs/adr/0058).

    request                     what may be done, as a URL and as a command line     pure
    readings, plan, planning    what is true, and the dry run that follows from it   pure
    halves                      what is true in each half, and what speaks against   pure
    offset_planning             the same for a group's offsets                       pure
    results                     done, refused, outcome unknown                       pure
    tickets                     forms that may come back, each once                  pure
    config                      clients, stores and limits
    reader                      reads afresh what a dry run needs
    execution                   calls what the command line calls
    audit                       one line before anything is sent, one after
    desk                        joins them: one action at a time

Nothing here decides what a transaction comes to: that is read from where the commands have it.
"""

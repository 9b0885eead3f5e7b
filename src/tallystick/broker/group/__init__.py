"""Group coordinator: `coordinator` is its public face, `logic` the shell around the pure `machine`.

Code shared with transactions is in `broker.coordinator`. This package knows no wire format of requests.
"""

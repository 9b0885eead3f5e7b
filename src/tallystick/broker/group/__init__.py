"""The group coordinator: `coordinator` is its face, `logic` its shell around the pure `machine`.

What it shares with transactions is in `broker.coordinator`. Nothing here knows a wire format of requests.
"""

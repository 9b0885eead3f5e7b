"""Handlers of logins, users and ACLs. A listener's own logins are in `broker.server`."""

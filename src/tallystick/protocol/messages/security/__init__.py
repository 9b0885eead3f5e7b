"""Messages of logins, users and ACLs."""

"""Key and trust stores, TLS contexts made of them, and the names that certificates carry."""

"""Handlers of brokers, coordinators, features, settings and quotas."""

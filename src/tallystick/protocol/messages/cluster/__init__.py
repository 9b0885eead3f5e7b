"""Messages of brokers, coordinators, features, settings and quotas."""

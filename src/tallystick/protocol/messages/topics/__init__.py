"""Messages of topics, and of where the replicas of their partitions are."""

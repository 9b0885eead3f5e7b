-- metadata.sqlite of format 1, as `sqlite3 metadata.sqlite .dump` prints it, with its PRAGMA user_version.
BEGIN TRANSACTION;
CREATE TABLE broker_config (
        broker TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (broker, name)
    ) STRICT, WITHOUT ROWID;
INSERT INTO "broker_config" VALUES('','message.max.bytes','8');
CREATE TABLE cluster (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO "cluster" VALUES('cluster.id','cccccccccccccccccccccc');
CREATE TABLE deleted_topic (
        id BLOB PRIMARY KEY, name TEXT NOT NULL, partitions INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
CREATE TABLE topic (
        name TEXT PRIMARY KEY, id BLOB NOT NULL UNIQUE, partitions INTEGER NOT NULL CHECK (partitions > 0)
    ) STRICT, WITHOUT ROWID;
INSERT INTO "topic" VALUES('orders',X'000102030405060708090A0B0C0D0E0F',3);
CREATE TABLE topic_config (
        topic TEXT NOT NULL REFERENCES topic ON DELETE CASCADE, name TEXT NOT NULL, value TEXT NOT NULL,
        PRIMARY KEY (topic, name)
    ) STRICT, WITHOUT ROWID;
INSERT INTO "topic_config" VALUES('orders','retention.ms','5');
COMMIT;
PRAGMA user_version = 1;

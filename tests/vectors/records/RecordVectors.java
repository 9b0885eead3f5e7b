// Writes record batches with Kafka's own code, one "name hex" line each, and reads batches given as
// "hex" lines on standard input with --read, printing "offset timestamp key value headers" for each record.
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.*;

public class RecordVectors {
    static final HexFormat HEX = HexFormat.of();

    static String hex(ByteBuffer b) {
        if (b == null) return "null";
        byte[] out = new byte[b.remaining()];
        b.duplicate().get(out);
        return HEX.formatHex(out);
    }

    static SimpleRecord[] records() {
        return new SimpleRecord[] {
            new SimpleRecord(1_700_000_000_000L, null, "first".getBytes()),
            new SimpleRecord(1_700_000_000_007L, "k".getBytes(), null),
            new SimpleRecord(1_699_999_999_000L, "key".getBytes(), "v".repeat(300).getBytes(),
                new Header[] { new RecordHeader("h", new byte[] {0, 1}), new RecordHeader("n", (byte[]) null) }),
            new SimpleRecord(1_700_000_100_000L, new byte[0], new byte[0]),
        };
    }

    static void print(String name, MemoryRecords records) {
        System.out.println(name + " " + hex(records.buffer()));
    }

    static MemoryRecords build(Compression compression, TimestampType type, long producerId, short epoch, int sequence,
                               boolean transactional) {
        MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1 << 16), (byte) 2, compression, type,
            5L, type == TimestampType.LOG_APPEND_TIME ? 1_700_000_200_000L : -1L, producerId, epoch, sequence, transactional, 3);
        for (SimpleRecord r : records()) builder.append(r);
        return builder.build();
    }

    public static void main(String[] args) throws Exception {
        if (args.length > 0) {
            Scanner in = new Scanner(System.in);
            while (in.hasNextLine()) {
                MemoryRecords all = MemoryRecords.readableRecords(ByteBuffer.wrap(HEX.parseHex(in.nextLine().trim())));
                for (MutableRecordBatch batch : all.batches()) {
                    batch.ensureValid();
                    System.out.println("batch " + batch + " horizon=" + batch.deleteHorizonMs() + " max=" + batch.maxTimestamp()
                        + " epoch=" + batch.partitionLeaderEpoch() + " count=" + batch.countOrNull() + " producer=" + batch.producerId() + "/" + batch.producerEpoch());
                    for (org.apache.kafka.common.record.internal.Record r : batch) {
                        StringBuilder line = new StringBuilder(r.offset() + " " + r.timestamp() + " " + hex(r.key()) + " " + hex(r.value()));
                        for (Header h : r.headers())
                            line.append(" " + h.key() + "=" + (h.value() == null ? "null" : HEX.formatHex(h.value())));
                        if (batch.isControlBatch())
                            line.append(" " + ControlRecordType.parse(r.key()) + " " + EndTransactionMarker.deserialize(r).coordinatorEpoch());
                        System.out.println(line);
                    }
                }
            }
            return;
        }
        TimestampType create = TimestampType.CREATE_TIME;
        print("plain", build(Compression.NONE, create, -1L, (short) -1, -1, false));
        print("gzip", build(Compression.gzip().build(), create, -1L, (short) -1, -1, false));
        print("snappy", build(Compression.snappy().build(), create, -1L, (short) -1, -1, false));
        print("lz4", build(Compression.lz4().build(), create, -1L, (short) -1, -1, false));
        print("zstd", build(Compression.zstd().build(), create, -1L, (short) -1, -1, false));
        print("log_append_time", build(Compression.NONE, TimestampType.LOG_APPEND_TIME, -1L, (short) -1, -1, false));
        print("transactional_wrap", build(Compression.NONE, create, 4000L, (short) 7, Integer.MAX_VALUE - 1, true));
        print("abort", MemoryRecords.withEndTransactionMarker(9L, 1_700_000_000_000L, 3, 4000L, (short) 8,
            new EndTransactionMarker(ControlRecordType.ABORT, 11)));
        print("commit", MemoryRecords.withEndTransactionMarker(9L, 1_700_000_000_000L, 3, 4000L, (short) 8,
            new EndTransactionMarker(ControlRecordType.COMMIT, 11)));
        for (String kind : new String[] {"none", "horizon", "first", "empty"}) {
            MemoryRecords source = build(Compression.NONE, create, 4000L, (short) 7, Integer.MAX_VALUE - 1, true);
            ByteBuffer out = ByteBuffer.allocate(1 << 16);
            source.filterTo(new MemoryRecords.RecordFilter(1_700_000_500_000L, 1000L) {
                protected BatchRetentionResult checkBatchRetention(RecordBatch batch) {
                    return new BatchRetentionResult(BatchRetention.RETAIN_EMPTY, false);
                }
                protected boolean shouldRetainRecord(RecordBatch batch, org.apache.kafka.common.record.internal.Record record) {
                    switch (kind) {
                        case "none": return record.offset() != 6 && record.offset() != 5;  // no tombstone is left
                        case "horizon": return record.offset() != 5;  // the tombstone stays
                        case "first": return record.offset() == 5;
                        default: return false;
                    }
                }
            }, out, BufferSupplier.create());
            out.flip();
            print("compacted_" + kind, MemoryRecords.readableRecords(out));
        }
    }
}

// Kafka's own transaction log as an oracle:
//   java -cp '.cache/apache-kafka/4.3.1/libs/*' KafkaTransactionLog.java write          what Kafka 4.3.1 writes, story by story
//   java -cp '.cache/apache-kafka/4.3.1/libs/*' KafkaTransactionLog.java read           "key value" in hex on stdin: what it reads,
//                                                                            and with which pair it would mark an open transaction
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.Optional;
import java.util.Scanner;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.coordinator.transaction.TransactionLog;
import org.apache.kafka.coordinator.transaction.TransactionMetadata;
import org.apache.kafka.coordinator.transaction.TransactionState;
import org.apache.kafka.coordinator.transaction.TxnTransitMetadata;
import org.apache.kafka.server.common.TransactionVersion;

public class KafkaTransactionLog {
    private static final TransactionVersion V0 = TransactionVersion.TV_0, V1 = TransactionVersion.TV_1, V2 = TransactionVersion.TV_2;
    private static final TopicPartition ORDERS_0 = new TopicPartition("orders", 0), ORDERS_3 = new TopicPartition("orders", 3);
    private static final HexFormat HEX = HexFormat.of();
    private static long now = 1_700_000_000_000L;

    public static void main(String[] args) {
        if (args[0].equals("read")) read();
        else write();
    }

    private static void write() {
        System.out.println("Key " + HEX.formatHex(TransactionLog.keyToBytes("pay-7")));
        Story normal = new Story("v2", 42, -1, 60_000, V2);
        normal.init();
        normal.add(V2, ORDERS_3);
        normal.add(V2, ORDERS_0);
        normal.end(TransactionState.PREPARE_COMMIT, V2, -1);
        normal.add(V2, ORDERS_0);
        normal.end(TransactionState.PREPARE_ABORT, V2, -1);
        normal.init();

        Story rotated = new Story("rotated", 42, 32765, 60_000, V2);
        rotated.init();
        rotated.add(V2, ORDERS_0);
        rotated.end(TransactionState.PREPARE_COMMIT, V2, 43);
        rotated.add(V2, ORDERS_0);

        Story older = new Story("v1", 42, 6, 60_000, V1);
        older.init();
        older.add(V0, ORDERS_0);
        older.end(TransactionState.PREPARE_COMMIT, V0, -1);

        Story oldest = new Story("v0", 42, 6, 60_000, V0);
        oldest.init();
        oldest.add(V0, ORDERS_0);
        oldest.end(TransactionState.PREPARE_ABORT, V0, -1);

        Story twoPhase = new Story("2pc", 42, 6, Integer.MAX_VALUE, V2);
        twoPhase.init();
        twoPhase.add(V2, ORDERS_0);

        new Story("never", 42, -1, 60_000, V2).put("Empty");
        Story worn = new Story("worn", 42, 32766, 60_000, V2);
        worn.apply(worn.txn.prepareProducerIdRotation(43, 60_000, now, true));
    }

    /** One transactional id on its way through Kafka's own transitions; each is printed as it is stored. */
    private static class Story {
        private final String name;
        private final TransactionVersion finalized;
        private final TransactionMetadata txn;

        Story(String name, long producerId, int epoch, int timeoutMs, TransactionVersion finalized) {
            this.name = name;
            this.finalized = finalized;
            this.txn = new TransactionMetadata("pay-7", producerId, -1, -1, (short) epoch, (short) -1, timeoutMs,
                TransactionState.EMPTY, Set.of(), -1, now, V0);
        }

        void init() {
            apply(txn.prepareIncrementProducerEpoch(txn.txnTimeoutMs(), Optional.empty(), now));
        }

        void add(TransactionVersion version, TopicPartition partition) {
            apply(txn.prepareAddPartitions(Set.of(partition), now, version));
        }

        void end(TransactionState state, TransactionVersion version, long nextProducerId) {
            apply(txn.prepareAbortOrCommit(state, version, nextProducerId, now, false));
            apply(txn.prepareComplete(now));
        }

        void apply(TxnTransitMetadata step) {
            now += 1;
            System.out.println(name + "-" + step.txnState().stateName() + "-" + now % 1000 + " "
                + HEX.formatHex(TransactionLog.valueToBytes(step, finalized)));
            txn.completeTransitionTo(step);
        }

        void put(String label) {
            System.out.println(name + "-" + label + " " + HEX.formatHex(TransactionLog.valueToBytes(txn.prepareNoTransit(), finalized)));
        }
    }

    private static void read() {
        Scanner lines = new Scanner(System.in);
        while (lines.hasNext()) {
            ByteBuffer key = ByteBuffer.wrap(HEX.parseHex(lines.next())), value = ByteBuffer.wrap(HEX.parseHex(lines.next()));
            TransactionMetadata txn = ((TransactionLog.TxnRecord) TransactionLog.read(key, value)).metadata();
            TxnTransitMetadata as = txn.prepareNoTransit();
            String marked = "-";
            if (as.txnState() == TransactionState.ONGOING) {
                TxnTransitMetadata ended = txn.prepareAbortOrCommit(TransactionState.PREPARE_COMMIT, V2, -1, now, false);
                marked = ended.producerId() + "/" + ended.producerEpoch();
            }
            String partitions = new TreeSet<>(as.topicPartitions().stream().map(Object::toString).toList()).stream()
                .collect(Collectors.joining(","));
            System.out.println(String.join(" ", as.txnState().stateName(), as.producerId() + "/" + as.producerEpoch(),
                "" + as.prevProducerId(), "" + as.nextProducerId(), "" + as.txnTimeoutMs(), "" + as.txnStartTimestamp(),
                "" + as.clientTransactionVersion().featureLevel(), "[" + partitions + "]", marked));
        }
    }
}

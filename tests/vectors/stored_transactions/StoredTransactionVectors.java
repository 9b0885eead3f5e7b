// Prints what Kafka's own code writes for __transaction_state and for the bytes consumers exchange:
//   java -cp kafka-clients-4.3.1.jar:kafka-transaction-coordinator-4.3.1.jar StoredTransactionVectors.java
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.message.ConsumerProtocolAssignment;
import org.apache.kafka.common.message.ConsumerProtocolSubscription;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.coordinator.transaction.generated.TransactionLogKey;
import org.apache.kafka.coordinator.transaction.generated.TransactionLogValue;

public class StoredTransactionVectors {
    public static void main(String[] args) {
        print("TransactionLogKey", new TransactionLogKey().setTransactionalId("pay-7"), 0);
        for (int version = 0; version <= 1; version++) {
            print("Ongoing", ongoing(), version);
            print("Empty", ongoing().setTransactionStatus((byte) 0).setTransactionPartitions(null)
                .setTransactionStartTimestampMs(-1), version);
            print("CompleteCommit", ongoing().setTransactionStatus((byte) 4).setTransactionPartitions(List.of()), version);
        }
        print("Tagged", ongoing().setPreviousProducerId(41).setNextProducerId(43).setNextProducerEpoch((short) 8)
            .setClientTransactionVersion((short) 2), 1);
        for (int version = 0; version <= 3; version++) {
            ConsumerProtocolSubscription subscription = new ConsumerProtocolSubscription()
                .setTopics(List.of("orders", "payments")).setUserData(ByteBuffer.wrap(new byte[] {1, 2}));
            if (version >= 1) {
                ConsumerProtocolSubscription.TopicPartitionCollection owned = new ConsumerProtocolSubscription.TopicPartitionCollection();
                owned.add(new ConsumerProtocolSubscription.TopicPartition().setTopic("orders").setPartitions(List.of(0, 3)));
                subscription.setOwnedPartitions(owned);
            }
            if (version >= 2) subscription.setGenerationId(9);
            if (version >= 3) subscription.setRackId("r1");
            print("ConsumerProtocolSubscription", subscription, version);
            ConsumerProtocolAssignment.TopicPartitionCollection assigned = new ConsumerProtocolAssignment.TopicPartitionCollection();
            assigned.add(new ConsumerProtocolAssignment.TopicPartition().setTopic("orders").setPartitions(List.of(0, 3)));
            print("ConsumerProtocolAssignment", new ConsumerProtocolAssignment().setAssignedPartitions(assigned), version);
        }
    }

    private static TransactionLogValue ongoing() {
        return new TransactionLogValue().setProducerId(42).setProducerEpoch((short) 7).setTransactionTimeoutMs(60_000)
            .setTransactionStatus((byte) 1).setTransactionLastUpdateTimestampMs(1_700_000_000_001L)
            .setTransactionStartTimestampMs(1_700_000_000_000L)
            .setTransactionPartitions(List.of(new TransactionLogValue.PartitionsSchema().setTopic("orders").setPartitionIds(List.of(0, 3))));
    }

    private static void print(String name, Message message, int version) {
        ByteBufferAccessor bytes = MessageUtil.toByteBufferAccessor(message, (short) version);
        ByteBuffer buffer = bytes.buffer();
        byte[] raw = new byte[buffer.remaining()];
        buffer.get(raw);
        System.out.println(name + "-" + version + " " + HexFormat.of().formatHex(raw));
    }
}

// Writes the records of __consumer_offsets with Kafka's own code, one "name-version hex" line each,
// without the int16 that comes before each.
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.*;
import org.apache.kafka.coordinator.group.generated.*;

public class StoredGroupVectors {
    static void print(String name, Message message, short version) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer out = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(out), cache, version);
        System.out.println(name + "-" + version + " " + HexFormat.of().formatHex(out.array()));
    }

    public static void main(String[] args) {
        OffsetCommitKey key = new OffsetCommitKey().setGroup("g").setTopic("orders").setPartition(7);
        GroupMetadataKey group = new GroupMetadataKey().setGroup("g");
        print("OffsetCommitKey", key, (short) 0);
        print("GroupMetadataKey", group, (short) 0);
        for (short v = 0; v <= 4; v++) {
            OffsetCommitValue value = new OffsetCommitValue().setOffset(1234567890123L).setMetadata("meta").setCommitTimestamp(1_700_000_000_000L);
            if (v == 1) value.setExpireTimestamp(1_700_000_100_000L);
            if (v >= 3) value.setLeaderEpoch(5);
            if (v >= 4) value.setTopicId(new Uuid(0x0123456789abcdefL, 0x0fedcba987654321L));
            print("OffsetCommitValue", value, v);
            GroupMetadataValue.MemberMetadata member = new GroupMetadataValue.MemberMetadata().setMemberId("m-1")
                .setClientId("c").setClientHost("/127.0.0.1").setSessionTimeout(45_000).setSubscription(new byte[] {1, 2})
                .setAssignment(new byte[] {3});
            if (v >= 1) member.setRebalanceTimeout(300_000);
            if (v >= 3) member.setGroupInstanceId("static");
            GroupMetadataValue metadata = new GroupMetadataValue().setProtocolType("consumer").setGeneration(3)
                .setProtocol("range").setLeader("m-1").setMembers(List.of(member));
            if (v >= 2) metadata.setCurrentStateTimestamp(1_700_000_000_001L);
            print("GroupMetadataValue", metadata, v);
        }
        print("OffsetCommitValueWithoutTopicId", new OffsetCommitValue().setOffset(1).setMetadata("").setCommitTimestamp(2), (short) 4);
        print("GroupMetadataValueEmpty", new GroupMetadataValue().setProtocolType("").setGeneration(0).setProtocol(null).setLeader(null).setMembers(List.of()), (short) 3);
    }
}

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/** What Apache Kafka's assignors say: a group a line on standard input, its assignment a line on standard output. */
public final class AssignorOracle {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Node[] NOBODY = {Node.noNode()};

    public static void main(String[] unused) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(answer(JSON.readTree(line)));
        }
    }

    private static ObjectNode answer(JsonNode group) {
        ObjectNode answer = JSON.createObjectNode();
        try {
            Map<String, Subscription> members = new HashMap<>();
            for (JsonNode member : group.get("members")) {
                Subscription subscription = subscription(member);
                subscription.setGroupInstanceId(text(member, "instance"));
                members.put(member.get("id").asText(), subscription);
            }
            assignor(group.get("assignor").asText())
                .assign(cluster(group.get("topics")), new GroupSubscription(members))
                .groupAssignment()
                .forEach((member, assigned) -> {
                    var list = answer.putArray(member);
                    for (TopicPartition p : assigned.partitions()) list.add(p.topic() + "-" + p.partition());
                });
        } catch (RuntimeException exc) {
            answer.removeAll();
            answer.put("error", exc.toString());
        }
        return answer;
    }

    private static ConsumerPartitionAssignor assignor(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            default -> new CooperativeStickyAssignor();
        };
    }

    private static Subscription subscription(JsonNode member) {
        List<String> topics = new ArrayList<>();
        member.get("topics").forEach(topic -> topics.add(topic.asText()));
        List<TopicPartition> owned = new ArrayList<>();
        for (JsonNode p : member.get("owned")) owned.add(new TopicPartition(p.get(0).asText(), p.get(1).asInt()));
        ByteBuffer userData = text(member, "user_data").map(Base64.getDecoder()::decode).map(ByteBuffer::wrap).orElse(null);
        return new Subscription(topics, userData, owned, member.get("generation").asInt(-1), text(member, "rack"));
    }

    private static Optional<String> text(JsonNode member, String field) {
        return member.get(field).isNull() ? Optional.empty() : Optional.of(member.get(field).asText());
    }

    private static Cluster cluster(JsonNode topics) {
        Map<String, Node> racks = new HashMap<>();
        List<PartitionInfo> partitions = new ArrayList<>();
        topics.fieldNames().forEachRemaining(topic -> {
            int number = 0;
            for (JsonNode names : topics.get(topic)) {
                List<Node> replicas = new ArrayList<>();
                for (JsonNode name : names) {
                    String rack = name.asText();
                    replicas.add(racks.computeIfAbsent(rack, r -> new Node(racks.size(), "host", 9092, r)));
                }
                Node[] nodes = replicas.isEmpty() ? NOBODY : replicas.toArray(new Node[0]);
                partitions.add(new PartitionInfo(topic, number++, nodes[0], nodes, nodes));
            }
        });
        return new Cluster("oracle", racks.values(), partitions, Set.of(), Set.of());
    }
}

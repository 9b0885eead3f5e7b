import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/** What Kafka's StandardAuthorizer says: ACLs and questions a line on standard input, its answers a line on output. */
public final class AclOracle {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] unused) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(answer(JSON.readTree(line)));
        }
    }

    private static ObjectNode answer(JsonNode world) throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        StandardAuthorizer authorizer = new StandardAuthorizer();
        Map<String, Object> settings = new HashMap<>();
        settings.put("super.users", world.get("super_users").asText());
        settings.put("allow.everyone.if.no.acl.found", world.get("allow_everyone").asText());
        settings.put("node.id", 1);
        authorizer.configure(settings);
        try {
            authorizer.withPluginMetrics(new NoMetrics());
            for (JsonNode acl : world.get("acls")) {
                authorizer.addAcl(Uuid.randomUuid(), new StandardAcl(
                    ResourceType.fromCode((byte) acl.get(0).asInt()), acl.get(1).asText(),
                    PatternType.fromCode((byte) acl.get(2).asInt()), acl.get(3).asText(), acl.get(4).asText(),
                    AclOperation.fromCode((byte) acl.get(5).asInt()),
                    AclPermissionType.fromCode((byte) acl.get(6).asInt())));
            }
            authorizer.completeInitialLoad();
            var decisions = answer.putArray("decisions");
            for (JsonNode asked : world.get("questions")) {
                Sender sender = new Sender(asked.get(0).asText(), InetAddress.getByName(asked.get(1).asText()));
                AclOperation operation = AclOperation.fromCode((byte) asked.get(2).asInt());
                ResourceType type = ResourceType.fromCode((byte) asked.get(3).asInt());
                AuthorizationResult result = asked.get(4).isNull()
                    ? authorizer.authorizeByResourceType(sender, operation, type)
                    : authorizer.authorize(sender, List.of(new Action(operation,
                        new ResourcePattern(type, asked.get(4).asText(), PatternType.LITERAL), 1, true, true))).get(0);
                decisions.add(result == AuthorizationResult.ALLOWED);
            }
            var counts = answer.putArray("matches");
            for (JsonNode wanted : world.get("filters")) {
                int count = 0;
                for (AclBinding acl : authorizer.acls(filter(wanted))) count++;
                counts.add(count);
            }
        } finally {
            authorizer.close();
        }
        return answer;
    }

    private static AclBindingFilter filter(JsonNode wanted) {
        return new AclBindingFilter(
            new ResourcePatternFilter(ResourceType.fromCode((byte) wanted.get(0).asInt()),
                text(wanted.get(1)), PatternType.fromCode((byte) wanted.get(2).asInt())),
            new AccessControlEntryFilter(text(wanted.get(3)), text(wanted.get(4)),
                AclOperation.fromCode((byte) wanted.get(5).asInt()),
                AclPermissionType.fromCode((byte) wanted.get(6).asInt())));
    }

    private static String text(JsonNode node) {
        return node.isNull() ? null : node.asText();
    }

    private record Sender(String name, InetAddress address) implements AuthorizableRequestContext {
        @Override public String listenerName() { return "PLAINTEXT"; }
        @Override public SecurityProtocol securityProtocol() { return SecurityProtocol.PLAINTEXT; }
        @Override public KafkaPrincipal principal() {
            return new KafkaPrincipal("User", name.substring("User:".length()));
        }
        @Override public InetAddress clientAddress() { return address; }
        @Override public int requestType() { return 0; }
        @Override public int requestVersion() { return 9; }
        @Override public String clientId() { return "client"; }
        @Override public int correlationId() { return 1; }
    }

    /** Metrics that no one reads; the authorizer counts into them. */
    private static final class NoMetrics implements org.apache.kafka.common.metrics.PluginMetrics {
        private final org.apache.kafka.common.metrics.Metrics metrics = new org.apache.kafka.common.metrics.Metrics();
        @Override public org.apache.kafka.common.MetricName metricName(
            String name, String description, java.util.LinkedHashMap<String, String> tags) {
            return metrics.metricName(name, "plugin", description, tags);
        }
        @Override public void addMetric(
            org.apache.kafka.common.MetricName name, org.apache.kafka.common.metrics.MetricValueProvider<?> value) {
        }
        @Override public void removeMetric(org.apache.kafka.common.MetricName name) {
        }
        @Override public org.apache.kafka.common.metrics.Sensor addSensor(String name) {
            return metrics.sensor(name);
        }
        @Override public void removeSensor(String name) {
        }
    }
}

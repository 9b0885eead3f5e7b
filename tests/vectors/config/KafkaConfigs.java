import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.server.config.ConfigSynonym;
import org.apache.kafka.server.config.DynamicBrokerConfig;
import org.apache.kafka.server.config.ServerTopicConfigSynonyms;
import org.apache.kafka.storage.internals.log.LogConfig;

/**
 * Prints every broker and topic setting of a released Kafka, one line each, as its own definitions have it.
 *
 * java -cp "$(python -m tools.apache_kafka classpath)" KafkaConfigs.java > kafka-4.3.1-configs.txt
 *
 * broker|topic  name  type  default  how it is changed while running or what it falls back to; or "internal"
 *
 * A default is its text in backquotes, `null` without them where there is none, `required` where it must be set.
 */
public class KafkaConfigs {
    public static void main(String[] args) {
        Map<String, String> dynamic = DynamicBrokerConfig.dynamicConfigUpdateModes();
        new TreeMap<>(AbstractKafkaConfig.CONFIG_DEF.configKeys()).forEach((name, key) -> {
            print("broker", key, key.internalConfig ? "internal" : dynamic.getOrDefault(name, "read-only"));
        });
        new TreeMap<>(LogConfig.configKeys()).forEach((name, key) -> {
            print("topic", key, key.internalConfig ? "internal" : synonyms(name));
        });
    }

    static void print(String kind, ConfigDef.ConfigKey key, String last) {
        String value;
        if (key.defaultValue == ConfigDef.NO_DEFAULT_VALUE) value = "required";
        else if (key.defaultValue == null) value = "null";
        else value = "`" + ConfigDef.convertToString(key.defaultValue, key.type) + "`";
        System.out.println(String.join("\t", kind, key.name, key.type.name().toLowerCase(Locale.ROOT), value, last));
    }

    static String synonyms(String name) {
        List<ConfigSynonym> found = ServerTopicConfigSynonyms.ALL_TOPIC_CONFIG_SYNONYMS.getOrDefault(name, List.of());
        return found.isEmpty() ? "-" : found.stream().map(ConfigSynonym::name).collect(Collectors.joining(","));
    }
}

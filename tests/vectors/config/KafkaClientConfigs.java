import java.util.Locale;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.config.ConfigDef;

/**
 * Prints every setting of a released Kafka's clients, one line each, as their own definitions have it.
 *
 * java -cp "$(python -m tools.apache_kafka classpath)" KafkaClientConfigs.java > kafka-4.3.1-client-configs.txt
 *
 * producer|consumer|admin  name  type  default
 *
 * A default is its text in backquotes, `null` without them where there is none, `required` where it must be set.
 */
public class KafkaClientConfigs {
    public static void main(String[] args) {
        print("producer", ProducerConfig.configDef());
        print("consumer", ConsumerConfig.configDef());
        print("admin", AdminClientConfig.configDef());
    }

    static void print(String kind, ConfigDef definitions) {
        new TreeMap<>(definitions.configKeys()).forEach((name, key) -> {
            String value;
            if (key.defaultValue == ConfigDef.NO_DEFAULT_VALUE) value = "required";
            else if (key.defaultValue == null) value = "null";
            else value = "`" + ConfigDef.convertToString(key.defaultValue, key.type) + "`";
            System.out.println(String.join("\t", kind, name, key.type.name().toLowerCase(Locale.ROOT), value));
        });
    }
}

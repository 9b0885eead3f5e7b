import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.types.ArrayOf;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.CompactArrayOf;
import org.apache.kafka.common.protocol.types.Field;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;

/**
 * Prints the layout of every API and version of a released Kafka, one line each, as its own classes have it.
 *
 * java -cp kafka-clients-4.4.0.jar:slf4j-api.jar KafkaLayouts.java > kafka-4.4.0-layouts.txt
 *
 * name:type    ~ compact    ? nullable    [..] array    {..} struct    <n name:type> tagged    + tagged section
 */
public class KafkaLayouts {
    public static void main(String[] args) {
        for (ApiKeys api : ApiKeys.values()) {
            print(api, "request", api.messageType.requestSchemas());
            print(api, "response", api.messageType.responseSchemas());
        }
    }

    static void print(ApiKeys api, String kind, Schema[] schemas) {
        for (int version = 0; version < schemas.length; version++) {
            if (schemas[version] == null) continue;
            int header = kind.equals("request") ? api.requestHeaderVersion((short) version)
                : api.responseHeaderVersion((short) version);
            System.out.println(api.id + " " + kind + " " + version + " h" + header + " " + struct(schemas[version]));
        }
    }

    static String struct(Schema schema) {
        List<String> parts = new ArrayList<>();
        for (BoundField field : schema.fields()) {
            if (field.def.type instanceof TaggedFields tagged) {
                for (Map.Entry<Integer, Field> entry : tagged.fields().entrySet())
                    parts.add("<" + entry.getKey() + " " + field(entry.getValue()) + ">");
                parts.add("+");
            } else {
                parts.add(field(field.def));
            }
        }
        return "{" + String.join(" ", parts) + "}";
    }

    static String field(Field field) {
        return field.name + ":" + type(field.type);
    }

    static String type(Type type) {
        if (type instanceof Schema schema) return struct(schema);
        boolean array = type instanceof ArrayOf || type instanceof CompactArrayOf;
        String name = array ? "[" + type(type.arrayElementType().get()) + "]"
            : type.toString().replace("COMPACT_", "").replace("NULLABLE_", "").replace("BOOLEAN", "bool").toLowerCase();
        boolean compact = type instanceof CompactArrayOf || (!array && type.toString().startsWith("COMPACT_"));
        return (compact ? "~" : "") + name + (type.isNullable() ? "?" : "");
    }
}

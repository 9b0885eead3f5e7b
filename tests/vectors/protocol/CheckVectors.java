import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.MessageUtil;

/**
 * Reads every message of a .hex file with Kafka's own classes, prints it, and says whether they write it back alike.
 *
 * java -cp kafka-clients-4.3.1.jar:slf4j-api.jar CheckVectors.java transactions.hex
 */
public class CheckVectors {
    public static void main(String[] args) throws Exception {
        for (String block : Files.readString(Path.of(args[0])).split("(?m)^== ")) {
            String[] lines = block.split("\n");
            String[] title = lines[0].split(" ");
            if (title.length != 2) continue;
            StringBuilder hex = new StringBuilder();
            for (int i = 1; i < lines.length; i++) hex.append(lines[i].replaceAll("#.*", "").replaceAll("\\s", ""));
            check(title[0], Short.parseShort(title[1]), HexFormat.of().parseHex(hex));
        }
    }

    static void check(String name, short version, byte[] bytes) throws Exception {
        Class<?> type = Class.forName("org.apache.kafka.common.message." + name + "Data");
        ApiMessage message = (ApiMessage) type.getConstructor().newInstance();
        if (version > message.highestSupportedVersion()) {
            System.out.println(name + " " + version + " is newer than this Kafka");
            return;
        }
        ByteBuffer buffer = ByteBuffer.wrap(bytes);
        message.read(new ByteBufferAccessor(buffer), version);
        byte[] written = MessageUtil.toByteBufferAccessor(message, version).buffer().array();
        boolean same = !buffer.hasRemaining() && Arrays.equals(bytes, written);
        System.out.println(name + " " + version + (same ? " same bytes " : " DIFFERS ") + message);
    }
}

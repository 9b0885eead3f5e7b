import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.Future;
import java.util.stream.StreamSupport;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Apache's own client and tools behind one JVM: a JSON command a line on standard input, a JSON answer a line on
 * standard output. Starting a JVM for every step would take longer than the steps.
 */
public final class Driver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, Member> MEMBERS = new TreeMap<>();
    private static final Map<String, KafkaProducer<byte[], byte[]>> PRODUCERS = new TreeMap<>();
    private static final Map<String, Transformer> TRANSFORMERS = new TreeMap<>();

    /** The code of the first exit of the running tool; some tools catch what ends them, and exit once more. */
    private static Integer exitCode = null;

    /** Ends a tool that wants to end the process. */
    private static final class Exited extends RuntimeException {
        Exited(int code) {
            super(null, null, false, false);
            if (exitCode == null) exitCode = code;
        }
    }

    public static void main(String[] unused) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        interceptExits();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                run(JSON.readTree(line), answer);
            } catch (Throwable failure) {
                Throwable cause = failure.getCause() == null ? failure : failure.getCause();
                answer.put("error", cause.getClass().getSimpleName()).put("message", String.valueOf(cause.getMessage()));
            }
            answers.println(JSON.writeValueAsString(answer));
            answers.flush();
        }
        for (Member member : MEMBERS.values()) member.finish("close");
    }

    /** The class by which tools end the process has another package since Kafka 4.4. */
    private static void interceptExits() throws ReflectiveOperationException {
        Class<?> exit;
        try {
            exit = Class.forName("org.apache.kafka.common.utils.internals.Exit");
        } catch (ClassNotFoundException isOlder) {
            exit = Class.forName("org.apache.kafka.common.utils.Exit");
        }
        Class<?> procedure = Class.forName(exit.getName() + "$Procedure");
        Object end = Proxy.newProxyInstance(
            Driver.class.getClassLoader(), new Class<?>[] {procedure}, (self, method, arguments) -> {
                throw new Exited((int) arguments[0]);
            });
        exit.getMethod("setExitProcedure", procedure).invoke(null, end);
        exit.getMethod("setHaltProcedure", procedure).invoke(null, end);
    }

    private static void run(JsonNode command, ObjectNode answer) throws Exception {
        switch (command.get("do").asText()) {
            case "tool" -> tool(command, answer);
            case "property" -> System.setProperty(command.get("name").asText(), command.get("value").asText());
            case "produce" -> produce(command, answer);
            case "consume" -> consume(command, answer);
            case "member-start" -> {
                Member member = new Member(command);
                MEMBERS.put(command.get("name").asText(), member);
                member.start();
            }
            case "member-log" -> MEMBERS.get(command.get("name").asText()).report(answer);
            case "member-stop" -> {
                Member member = MEMBERS.get(command.get("name").asText());
                member.finish(command.get("how").asText());
                member.report(answer);
            }
            case "txn" -> transaction(command, answer);
            case "transformer-start" -> {
                Transformer transformer = new Transformer(command);
                TRANSFORMERS.put(command.get("name").asText(), transformer);
                transformer.start();
            }
            case "transformer-log" -> TRANSFORMERS.get(command.get("name").asText()).report(answer);
            case "transformer-stop" -> {
                Transformer transformer = TRANSFORMERS.get(command.get("name").asText());
                transformer.finish(command.get("how").asText());
                transformer.report(answer);
            }
            default -> throw new IllegalArgumentException(command.toString());
        }
    }

    private static Properties properties(JsonNode config) {
        Properties properties = new Properties();
        config.properties().forEach(entry -> properties.put(entry.getKey(), entry.getValue().asText()));
        properties.put("key.serializer", ByteArraySerializer.class.getName());
        properties.put("value.serializer", ByteArraySerializer.class.getName());
        properties.put("key.deserializer", ByteArrayDeserializer.class.getName());
        properties.put("value.deserializer", ByteArrayDeserializer.class.getName());
        return properties;
    }

    private static String[] strings(JsonNode array) {
        return StreamSupport.stream(array.spliterator(), false).map(JsonNode::asText).toArray(String[]::new);
    }

    private static byte[] bytes(JsonNode node) {
        return node == null || node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    /** Runs the main class of a tool with its output caught. */
    private static void tool(JsonNode command, ObjectNode answer) throws Exception {
        PrintStream out = System.out, err = System.err;
        InputStream in = System.in;
        ByteArrayOutputStream caughtOut = new ByteArrayOutputStream(), caughtErr = new ByteArrayOutputStream();
        exitCode = null;
        try {
            System.setOut(new PrintStream(caughtOut, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(caughtErr, true, StandardCharsets.UTF_8));
            System.setIn(new ByteArrayInputStream(command.get("stdin").asText().getBytes(StandardCharsets.UTF_8)));
            Object arguments = strings(command.get("args"));
            Class.forName(command.get("main").asText()).getMethod("main", String[].class).invoke(null, arguments);
        } catch (java.lang.reflect.InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Exited)) {
                thrown.getCause().printStackTrace();
                exitCode = 1;
            }
        } finally {
            System.setOut(out);
            System.setErr(err);
            System.setIn(in);
        }
        answer.put("exit", exitCode == null ? 0 : exitCode);
        answer.put("out", caughtOut.toString(StandardCharsets.UTF_8));
        answer.put("err", caughtErr.toString(StandardCharsets.UTF_8));
    }

    /** Sends records and waits for every acknowledgement. */
    private static void produce(JsonNode command, ObjectNode answer) throws Exception {
        ArrayNode offsets = answer.putArray("offsets");
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties(command.get("config")))) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode node : command.get("records")) {
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                    node.get("topic").asText(),
                    node.get("partition").asInt(),
                    bytes(node.get("key")),
                    bytes(node.get("value")));
                for (JsonNode header : node.path("headers")) record.headers().add(header.get(0).asText(), bytes(header.get(1)));
                sent.add(producer.send(record));
            }
            for (Future<RecordMetadata> future : sent) offsets.add(future.get().offset());
        }
    }

    /** One call of a transactional producer, which lives under its name from "open" to "close" or "abandon". */
    private static void transaction(JsonNode command, ObjectNode answer) throws Exception {
        String name = command.get("name").asText();
        KafkaProducer<byte[], byte[]> producer = PRODUCERS.get(name);
        switch (command.get("call").asText()) {
            case "open" -> {
                producer = new KafkaProducer<>(properties(command.get("config")));
                PRODUCERS.put(name, producer);
                producer.initTransactions();
            }
            case "begin" -> producer.beginTransaction();
            case "send" -> {
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (JsonNode node : command.get("records")) {
                    Long timestamp = node.has("timestamp") ? Long.valueOf(node.get("timestamp").asLong()) : null;
                    sent.add(producer.send(new ProducerRecord<>(
                        node.get("topic").asText(),
                        node.get("partition").asInt(),
                        timestamp,
                        bytes(node.get("key")),
                        bytes(node.get("value")))));
                }
                producer.flush();
                ArrayNode offsets = answer.putArray("offsets");
                for (Future<RecordMetadata> future : sent) offsets.add(future.get().offset());
            }
            case "offsets" -> {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (JsonNode node : command.get("offsets")) {
                    TopicPartition partition = new TopicPartition(node.get(0).asText(), node.get(1).asInt());
                    offsets.put(partition, new OffsetAndMetadata(node.get(2).asLong()));
                }
                producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata(
                    command.get("group").asText(), -1, "", Optional.empty()));
            }
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "close" -> PRODUCERS.remove(name).close();
            // Without the abort that an orderly close sends.
            case "abandon" -> PRODUCERS.remove(name).close(Duration.ZERO);
            default -> throw new IllegalArgumentException(command.toString());
        }
    }

    private static void put(ArrayNode records, ConsumerRecord<byte[], byte[]> record) {
        ObjectNode node = records.addObject();
        node.put("partition", record.partition()).put("offset", record.offset()).put("timestamp", record.timestamp());
        node.put("key", text(record.key())).put("value", text(record.value()));
        ArrayNode headers = node.putArray("headers");
        for (Header header : record.headers()) headers.addArray().add(header.key()).add(text(header.value()));
    }

    /** Reads a number of records from the beginning of some partitions. */
    private static void consume(JsonNode command, ObjectNode answer) {
        ArrayNode records = answer.putArray("records");
        List<TopicPartition> partitions = new ArrayList<>();
        for (JsonNode partition : command.get("partitions")) {
            partitions.add(new TopicPartition(command.get("topic").asText(), partition.asInt()));
        }
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties(command.get("config")))) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long giveUpAt = System.nanoTime() + 30_000_000_000L;
            while (records.size() < command.get("count").asInt() && System.nanoTime() < giveUpAt) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) put(records, record);
            }
        }
    }

    /** One group member on a thread of its own; it commits what it has noted after every poll. */
    private static final class Member extends Thread implements ConsumerRebalanceListener {
        private final KafkaConsumer<byte[], byte[]> consumer;
        private final List<String> topics;
        private final ArrayNode seen = JSON.createArrayNode();
        private List<Integer> assigned = List.of();
        private String failure = null;
        private volatile String end = null;

        Member(JsonNode command) {
            consumer = new KafkaConsumer<>(properties(command.get("config")));
            topics = List.of(strings(command.get("topics")));
            setDaemon(true);
        }

        @Override
        public void run() {
            try {
                consumer.subscribe(topics, this);
                while (end == null) {
                    var polled = consumer.poll(Duration.ofMillis(50));
                    int generation = consumer.groupMetadata().generationId();
                    synchronized (this) {
                        assigned = consumer.assignment().stream().map(TopicPartition::partition).sorted().toList();
                        for (ConsumerRecord<byte[], byte[]> record : polled) {
                            seen.addArray().add(generation).add(record.partition()).add(record.offset()).add(text(record.value()));
                        }
                    }
                    commit();
                }
                if (end.equals("close")) consumer.close();
            } catch (RuntimeException thrown) {
                synchronized (this) {
                    failure = thrown.toString();
                }
            }
        }

        /** A commit that a rebalance refused is made up for before another member reads on. */
        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
            commit();
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> added) {}

        private void commit() {
            try {
                consumer.commitSync();
            } catch (RebalanceInProgressException | CommitFailedException moved) {
                return;
            }
        }

        void finish(String how) throws InterruptedException {
            end = how;
            join(20_000);
        }

        synchronized void report(ObjectNode answer) {
            answer.set("seen", seen.deepCopy());
            ArrayNode partitions = answer.putArray("assigned");
            assigned.forEach(partitions::add);
            answer.put("failure", failure);
        }
    }

    /** Consumes, and produces what it read with its offsets in one transaction, until it is told to end. */
    private static final class Transformer extends Thread {
        private final Properties config;
        private final Properties transactional;
        private final String from;
        private final String to;
        private long committed = 0;
        private long aborted = 0;
        private String failure = null;
        private volatile String end = null;

        Transformer(JsonNode command) {
            config = properties(command.get("consumer"));
            transactional = properties(command.get("producer"));
            from = command.get("from").asText();
            to = command.get("to").asText();
            setDaemon(true);
        }

        @Override
        public void run() {
            KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config);
            KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(transactional);
            try {
                producer.initTransactions();
                consumer.subscribe(List.of(from));
                while (end == null) step(consumer, producer);
                if (end.equals("abandon")) {
                    producer.beginTransaction();
                    producer.send(new ProducerRecord<>(to, 0, null, "left behind".getBytes(StandardCharsets.UTF_8)));
                    producer.flush();
                }
            } catch (RuntimeException thrown) {
                synchronized (this) {
                    failure = thrown.toString();
                }
            } finally {
                boolean orderly = "close".equals(end);
                producer.close(orderly ? Duration.ofSeconds(10) : Duration.ZERO);
                if (orderly) consumer.close();
            }
        }

        private void step(KafkaConsumer<byte[], byte[]> consumer, KafkaProducer<byte[], byte[]> producer) {
            var polled = consumer.poll(Duration.ofMillis(50));
            if (polled.isEmpty()) return;
            producer.beginTransaction();
            try {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (ConsumerRecord<byte[], byte[]> record : polled) {
                    producer.send(new ProducerRecord<>(to, record.partition(), record.key(), record.value()));
                    TopicPartition partition = new TopicPartition(record.topic(), record.partition());
                    offsets.put(partition, new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                producer.commitTransaction();
                synchronized (this) {
                    committed++;
                }
            } catch (ProducerFencedException | OutOfOrderSequenceException fatal) {
                throw fatal;
            } catch (KafkaException abortable) {
                producer.abortTransaction();
                synchronized (this) {
                    aborted++;
                }
                // What was read is read again, from the last committed offsets.
                for (TopicPartition partition : consumer.assignment()) {
                    OffsetAndMetadata known = consumer.committed(java.util.Set.of(partition)).get(partition);
                    if (known == null) consumer.seekToBeginning(List.of(partition));
                    else consumer.seek(partition, known);
                }
            }
        }

        void finish(String how) throws InterruptedException {
            end = how;
            join(20_000);
        }

        synchronized void report(ObjectNode answer) {
            answer.put("committed", committed).put("aborted", aborted).put("failure", failure);
        }
    }
}

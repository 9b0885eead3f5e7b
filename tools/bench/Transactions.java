import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Transactions of one message through Apache's Java client, one thread per producer; prints a JSON line. */
public final class Transactions {
    private static final class Worker extends Thread {
        private final String bootstrap, topic;
        private final int number, partition, size;
        private final long warmUpNs, ns;
        private final CountDownLatch ready;
        private final List<Double> takenMs = new ArrayList<>();
        private long committed = 0;
        private volatile Throwable failure = null;

        Worker(String[] args, int number, CountDownLatch ready) {
            this.bootstrap = args[0];
            this.topic = args[1];
            this.number = number;
            this.partition = number % Integer.parseInt(args[2]);
            this.warmUpNs = (long) (Double.parseDouble(args[4]) * 1e9);
            this.ns = (long) (Double.parseDouble(args[5]) * 1e9);
            this.size = Integer.parseInt(args[6]);
            this.ready = ready;
            setDaemon(true);
        }

        @Override
        public void run() {
            Properties properties = new Properties();
            properties.put("bootstrap.servers", bootstrap);
            properties.put("transactional.id", topic + "-" + number);
            properties.put("linger.ms", "0");
            properties.put("key.serializer", ByteArraySerializer.class.getName());
            properties.put("value.serializer", ByteArraySerializer.class.getName());
            try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties)) {
                producer.initTransactions();
                ready.countDown();
                ready.await();
                commitUntilTimeIsUp(producer);
            } catch (Throwable thrown) {
                failure = thrown;
                while (ready.getCount() > 0) ready.countDown();
            }
        }

        private void commitUntilTimeIsUp(KafkaProducer<byte[], byte[]> producer) {
            byte[] value = new byte[size];
            long countedFrom = System.nanoTime() + warmUpNs, ends = countedFrom + ns;
            for (long begun = System.nanoTime(); begun < ends; begun = System.nanoTime()) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, partition, null, value));
                // Without this the client (4.3.1) may send the end before the record: its sender thread looks for
                // unsent batches before it takes the lock under which the end is queued.
                producer.flush();
                producer.commitTransaction();
                committed++;
                long done = System.nanoTime();
                if (begun >= countedFrom && done < ends) takenMs.add((done - begun) / 1e6);
            }
        }
    }

    public static void main(String[] args) throws Exception {
        int producers = Integer.parseInt(args[3]);
        CountDownLatch ready = new CountDownLatch(producers);
        List<Worker> workers = new ArrayList<>();
        for (int number = 0; number < producers; number++) workers.add(new Worker(args, number, ready));
        for (Worker worker : workers) worker.start();
        List<Double> taken = new ArrayList<>();
        long committed = 0;
        for (Worker worker : workers) {
            worker.join();
            if (worker.failure != null) {
                worker.failure.printStackTrace();
                System.exit(1);
            }
            taken.addAll(worker.takenMs);
            committed += worker.committed;
        }
        System.out.println("{\"committed\": " + committed + ", \"taken_ms\": " + taken + "}");
    }
}

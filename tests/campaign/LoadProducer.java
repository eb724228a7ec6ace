import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The producer of load_client.py with Apache Kafka's own client: the same arguments in a fixed order, the same lines.
 *
 * <p>Arguments: bootstrap, topic, partitions, name, records per second and partition, request timeout in ms (0: default),
 * then NAME=VALUE for each other setting.
 */
public class LoadProducer {
    private static volatile boolean stopping = false;

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        String name = arguments[3];
        double rate = Double.parseDouble(arguments[4]);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("client.id", name);
        settings.put("acks", "all");
        settings.put("enable.idempotence", "true");
        settings.put("linger.ms", "1");
        settings.put("delivery.timeout.ms", "240000");
        settings.put("max.block.ms", "240000");
        if (!arguments[5].equals("0")) settings.put("request.timeout.ms", arguments[5]);
        for (int number = 6; number < arguments.length; number++) {
            String[] words = arguments[number].split("=", 2);
            settings.put(words[0], words[1]);
        }
        Thread end = new Thread(LoadProducer::waitForEnd);
        end.setDaemon(true);
        end.start();
        int count = 0;
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            print("ready");
            while (!stopping) {
                for (int partition = 0; partition < partitions; partition++) {
                    send(producer, topic, partition, name, count);
                }
                count++;
                Thread.sleep((long) (1000 / rate));
            }
            producer.flush();
        }
        for (int partition = 0; partition < partitions; partition++) print("sent " + partition + " " + count);
    }

    private static void send(KafkaProducer<String, String> producer, String topic, int partition, String name, int number) {
        String value = name + "." + partition + "." + number;
        producer.send(new ProducerRecord<>(topic, partition, null, value), (metadata, error) -> {
            String now = String.format(java.util.Locale.ROOT, "%.6f", System.nanoTime() / 1e9);
            if (error == null) print("acknowledged " + partition + " " + number + " " + metadata.offset() + " " + now);
            else print("failed " + partition + " " + number + " " + now + " " + error.toString().replace('\n', ' '));
        });
    }

    private static void waitForEnd() {
        try {
            while (System.in.read() >= 0) { }
        } catch (java.io.IOException error) {
            // The pipe is closed: the parent has ended.
        }
        stopping = true;
    }

    private static synchronized void print(String line) {
        System.out.println(line);
        System.out.flush();
    }
}

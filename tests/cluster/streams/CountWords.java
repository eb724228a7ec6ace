import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Kafka Streams with exactly_once_v2: copies each record, and counts the words that are the values' first parts.
 *
 * <p>Arguments: bootstrap, application id, input topic, topic of the copies, topic of the counts, state directory.
 *
 * <p>Without caching each input record gives one count, so the counts of a word must be 1, 2, 3 and so on. The store is in
 * memory: each start and each move of a task reads its compacted changelog.
 */
public class CountWords {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("application.id", arguments[1]);
        settings.put("state.dir", arguments[5]);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("num.stream.threads", "2");
        settings.put("replication.factor", "3");
        settings.put("statestore.cache.max.bytes", "0");
        settings.put("commit.interval.ms", "200");
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.StringSerde.class.getName());
        // Large batches, so that brokers open those of the changelog off their event loops.
        settings.put("main.consumer.max.poll.records", "5000");
        settings.put("main.consumer.session.timeout.ms", "10000");
        settings.put("consumer.auto.offset.reset", "earliest");
        settings.put("producer.linger.ms", "100");
        settings.put("producer.batch.size", "262144");
        settings.put("producer.transaction.timeout.ms", "20000");

        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> input =
                builder.stream(arguments[2], Consumed.with(Serdes.String(), Serdes.String()));
        input.to(arguments[3], Produced.with(Serdes.String(), Serdes.String()));
        Materialized<String, Long, KeyValueStore<Bytes, byte[]>> counts =
                Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                        .withKeySerde(Serdes.String())
                        .withValueSerde(Serdes.Long());
        input.groupBy((key, value) -> value.split(" ")[0], Grouped.with("words", Serdes.String(), Serdes.String()))
                .count(counts)
                .toStream()
                .mapValues(String::valueOf)
                .to(arguments[4], Produced.with(Serdes.String(), Serdes.String()));

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            System.err.println("replaced a thread: " + error);
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.setStateListener((to, from) -> System.out.println("state " + to));
        streams.start();
        // The pipe is closed when the parent asks for the end, or has ended.
        while (System.in.read() >= 0) { }
        System.exit(streams.close(Duration.ofSeconds(60)) ? 0 : 1);
    }
}

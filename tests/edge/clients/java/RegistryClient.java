import io.confluent.kafka.schemaregistry.avro.AvroSchema;
import io.confluent.kafka.schemaregistry.client.CachedSchemaRegistryClient;
import io.confluent.kafka.schemaregistry.client.rest.RestService;
import io.confluent.kafka.schemaregistry.client.rest.entities.Config;
import io.confluent.kafka.schemaregistry.client.rest.entities.Metadata;
import io.confluent.kafka.schemaregistry.client.rest.entities.Rule;
import io.confluent.kafka.schemaregistry.client.rest.entities.RuleKind;
import io.confluent.kafka.schemaregistry.client.rest.entities.RuleMode;
import io.confluent.kafka.schemaregistry.client.rest.entities.RuleSet;
import io.confluent.kafka.schemaregistry.client.rest.entities.SchemaReference;
import io.confluent.kafka.schemaregistry.client.rest.exceptions.RestClientException;
import io.confluent.kafka.serializers.KafkaAvroDeserializer;
import io.confluent.kafka.serializers.KafkaAvroSerializer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.pinot.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.pinot.shaded.com.fasterxml.jackson.databind.ObjectMapper;

/**
 * Confluent's registry client and Avro serializers for Java, as a command: it calls their methods once.
 *
 * <p>The task on standard input and the answer on standard output are one JSON object each; registry_clients.py describes
 * both.
 */
public final class RegistryClient {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final String FIRST =
      "{\"type\":\"record\",\"name\":\"Order\",\"namespace\":\"java\",\"fields\":[{\"name\":\"id\",\"type\":\"int\"}]}";
  private static final String SECOND =
      "{\"type\":\"record\",\"name\":\"Order\",\"namespace\":\"java\",\"fields\":[{\"name\":\"id\",\"type\":\"long\"},"
          + "{\"name\":\"currency\",\"type\":\"string\",\"default\":\"EUR\"}]}";
  private static final String BROKEN =
      "{\"type\":\"record\",\"name\":\"Order\",\"namespace\":\"java\",\"fields\":[{\"name\":\"other\",\"type\":\"string\"}]}";

  private final CachedSchemaRegistryClient client;
  private final Map<String, String> settings;
  private final String prefix;
  private final Map<String, Object> calls = new LinkedHashMap<>();

  private RegistryClient(JsonNode task) {
    List<String> urls = new ArrayList<>();
    task.get("urls").forEach(url -> urls.add(url.asText()));
    settings = new HashMap<>();
    settings.put("schema.registry.url", String.join(",", urls));
    if (task.hasNonNull("user")) {
      settings.put("basic.auth.credentials.source", "USER_INFO");
      settings.put("basic.auth.user.info", task.get("user").asText() + ":" + task.get("password").asText());
    }
    if (task.hasNonNull("ca")) {
      settings.put("schema.registry.ssl.truststore.type", "PEM");
      settings.put("schema.registry.ssl.truststore.location", task.get("ca").asText());
    }
    prefix = task.get("prefix").asText();
    client = new CachedSchemaRegistryClient(new RestService(urls), 1000, settings);
  }

  public static void main(String[] arguments) throws Exception {
    JsonNode task = JSON.readTree(System.in);
    RegistryClient run = new RegistryClient(task);
    run.subjects();
    run.references();
    run.settings();
    run.contexts();
    run.deletions();
    Map<String, Object> answer = new LinkedHashMap<>();
    answer.put("calls", run.calls);
    answer.put("read", run.read(task.get("read")));
    answer.put("data", run.data());
    System.out.println(JSON.writeValueAsString(answer));
  }

  /** Keep the result of a call under a name. An error of the registry is its code. */
  private void note(String name, Callable<Object> call) throws Exception {
    try {
      calls.put(name, call.call());
    } catch (RestClientException error) {
      calls.put(name, error.getErrorCode());
    }
  }

  private void subjects() throws Exception {
    String subject = prefix + "-value";
    Metadata metadata = new Metadata(Map.of("**", Set.of("PII")), Map.of("owner", "java"), null);
    Rule rule = new Rule("positive", null, RuleKind.CONDITION, RuleMode.WRITE, "CEL", null, null, "message.id > 0",
        null, null, false);
    AvroSchema first = new AvroSchema(FIRST).copy(metadata, new RuleSet(null, List.of(rule)));
    int id = client.register(subject, first);
    note("register again", () -> client.register(subject, first) == id);
    note("register with a full response", () -> {
      var response = client.registerWithResponse(subject, new AvroSchema(SECOND), false, false);
      return List.of(response.getVersion(), response.getId() > id);
    });
    client.reset(); // the answers below come from the registry, not from the cache
    note("by id", () -> client.getSchemaById(id).canonicalString().equals(FIRST));
    note("by subject and id", () -> client.getSchemaBySubjectAndId(subject, id).rawSchema().equals(first.rawSchema()));
    note("metadata", () -> client.getSchemaBySubjectAndId(subject, id).metadata().getProperties());
    note("rules", () -> client.getSchemaBySubjectAndId(subject, id).ruleSet().getDomainRules().get(0).getExpr());
    note("unknown id", () -> client.getSchemaById(2_000_000_000));
    note("latest", () -> client.getLatestSchemaMetadata(subject).getVersion());
    note("version", () -> client.getSchemaMetadata(subject, 1).getId() == id);
    note("unknown version", () -> client.getSchemaMetadata(subject, 9));
    note("with metadata", () -> client.getLatestWithMetadata(subject, Map.of("owner", "java"), false).getVersion());
    note("version of a schema", () -> client.getVersion(subject, first));
    note("id of a schema", () -> client.getId(subject, first) == id);
    note("id of an unknown schema", () -> client.getId(subject, new AvroSchema("\"string\"")));
    note("versions", () -> client.getAllVersions(subject));
    note("subjects", () -> client.getAllSubjectsByPrefix(prefix));
    note("subjects of the id", () -> client.getAllSubjectsById(id).contains(subject));
    note("versions of the id", () -> client.getAllVersionsById(id).toString().contains(subject));
    note("schemas", () -> client.getSchemas(subject, false, true).size());
    note("incompatible", () -> client.register(subject, new AvroSchema(BROKEN)));
    note("check", () -> client.testCompatibility(subject, new AvroSchema(BROKEN)));
    note("reasons", () -> !client.testCompatibilityVerbose(subject, new AvroSchema(BROKEN)).isEmpty());
  }

  private void references() throws Exception {
    String outer = "{\"type\":\"record\",\"name\":\"Cart\",\"fields\":[{\"name\":\"order\",\"type\":\"java.Order\"}]}";
    SchemaReference reference = new SchemaReference("java.Order", prefix + "-value", 1);
    int id = client.register(prefix + "-cart", new AvroSchema(outer, List.of(reference), Map.of("java.Order", FIRST), null));
    client.reset();
    note("references", () -> client.getSchemaById(id).references().get(0).getSubject());
    note("schema with references", () -> ((AvroSchema) client.getSchemaById(id)).rawSchema().getField("order").schema().getFullName());
    note("delete what is referenced", () -> client.deleteSubject(prefix + "-value"));
  }

  private void settings() throws Exception {
    String subject = prefix + "-value";
    note("global level", () -> client.getCompatibility(null));
    note("level of the subject before", () -> client.getCompatibility(subject));
    note("set level", () -> client.updateCompatibility(subject, "FULL"));
    note("level", () -> client.getCompatibility(subject));
    Config config = new Config("BACKWARD_TRANSITIVE");
    config.setCompatibilityGroup("major");
    config.setNormalize(true);
    note("set config", () -> client.updateConfig(subject, config).getCompatibilityLevel());
    note("config", () -> client.getConfig(subject).getCompatibilityGroup());
    client.deleteConfig(subject);
    note("config after deletion", () -> client.getConfig(subject));
    note("global mode", () -> client.getMode());
    note("set mode", () -> client.setMode("READONLY", subject));
    note("mode", () -> client.getMode(subject));
    note("register in a read-only subject", () -> client.register(subject, new AvroSchema("\"int\"")));
    client.deleteMode(subject);
    note("mode after deletion", () -> client.getMode(subject));
  }

  private void contexts() throws Exception {
    String name = "." + prefix;
    note("register in a context", () -> client.register(":" + name + ":s", new AvroSchema("\"bytes\"")));
    note("contexts", () -> new ArrayList<>(client.getAllContexts()).contains(name));
    note("subjects of the context", () -> client.getAllSubjectsByPrefix(":" + name + ":").size());
    note("import mode", () -> client.setMode("IMPORT", ":" + name + ":imported"));
    note("import", () -> client.register(":" + name + ":imported", new AvroSchema(FIRST), 5, 4711));
    note("imported", () -> client.getSchemaMetadata(":" + name + ":imported", 5).getId());
  }

  private void deletions() throws Exception {
    String subject = prefix + "-deleted";
    client.register(subject, new AvroSchema(FIRST));
    client.register(subject, new AvroSchema(SECOND));
    note("delete permanently first", () -> client.deleteSchemaVersion(subject, "1", true));
    note("delete a version", () -> client.deleteSchemaVersion(subject, "1"));
    note("versions with deleted ones", () -> client.getAllVersions(subject, true));
    note("delete a version permanently", () -> client.deleteSchemaVersion(subject, "1", true));
    note("delete the subject", () -> client.deleteSubject(subject));
    note("subjects with deleted ones", () -> client.getAllSubjects(true).contains(subject));
    note("delete the subject permanently", () -> client.deleteSubject(subject, true));
  }

  /** Decode what another client has encoded: old data with its own schema and with a newer one. */
  private Map<String, Object> read(JsonNode data) throws Exception {
    byte[] avro = Base64.getDecoder().decode(data.get("avro").asText());
    Map<String, Object> found = new LinkedHashMap<>();
    try (var deserializer = new KafkaAvroDeserializer(client)) {
      deserializer.configure(settings, false);
      found.put("avro", ((GenericRecord) deserializer.deserialize("other", avro)).get("id"));
    }
    String name = ((AvroSchema) client.getSchemaById(java.nio.ByteBuffer.wrap(avro).getInt(1))).rawSchema().getFullName();
    Schema reader = new Schema.Parser().parse(SECOND.replace("\"Order\",\"namespace\":\"java\"", "\"" + name + "\""));
    try (var deserializer = new KafkaAvroDeserializer(client)) {
      deserializer.configure(settings, false);
      GenericRecord record = (GenericRecord) deserializer.deserialize("other", avro, reader);
      found.put("avro with a newer schema", List.of(record.get("id"), record.get("currency").toString()));
    }
    return found;
  }

  /** Encode for other clients: with a schema that the serializer registers, and with the latest version. */
  private Map<String, Object> data() throws Exception {
    Map<String, Object> data = new LinkedHashMap<>();
    String topic = prefix + "-avro";
    GenericRecord record = new GenericData.Record(new Schema.Parser().parse(FIRST));
    record.put("id", 42);
    try (var serializer = new KafkaAvroSerializer(client)) {
      serializer.configure(settings, false);
      data.put("avro", serializer.serialize(topic, record));
    }
    client.register(topic + "-value", new AvroSchema(SECOND));
    client.reset();
    Map<String, Object> latest = new HashMap<>(settings);
    latest.put("auto.register.schemas", false);
    latest.put("use.latest.version", true);
    latest.put("latest.compatibility.strict", false);
    try (var serializer = new KafkaAvroSerializer(client)) {
      serializer.configure(latest, false);
      GenericRecord newer = new GenericData.Record(new Schema.Parser().parse(SECOND));
      newer.put("id", 43L);
      newer.put("currency", "CZK");
      data.put("avro latest", serializer.serialize(topic, newer));
    }
    return data;
  }
}

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Set;
import org.apache.avro.LogicalType;
import org.apache.avro.LogicalTypes;
import org.apache.avro.NameValidator;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;

/**
 * Prints what Java Avro says about pairs of schemas, one JSON object per line of standard input.
 *
 * <p>A line has "references" (a list of texts that are parsed first), "reader" and "writer". The answer has, for each side,
 * the text of the schema that was parsed as a new one and as a stored one, or null if Java refuses it; then the
 * incompatibilities of the stored ones, and whether they are equal.
 */
public class AvroVerdicts {
  private static final ObjectMapper MAPPER = new ObjectMapper();

  public static void main(String[] args) throws Exception {
    // The registry knows two more logical types.
    LogicalTypes.register("map", schema -> new KeyValueMap());
    LogicalTypes.register("variant", schema -> new Variant());
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(System.out, false, "UTF-8");
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      out.println(MAPPER.writeValueAsString(answer(MAPPER.readTree(line))));
    }
    out.flush();
  }

  private static ObjectNode answer(JsonNode question) {
    List<String> references = new ArrayList<>();
    question.get("references").forEach(text -> references.add(text.textValue()));
    ObjectNode answer = MAPPER.createObjectNode();
    Parsed reader = new Parsed(references, question.get("reader").textValue(), false);
    Parsed writer = new Parsed(references, question.get("writer").textValue(), false);
    answer.put("reader_new", new Parsed(references, question.get("reader").textValue(), true).text);
    answer.put("writer_new", new Parsed(references, question.get("writer").textValue(), true).text);
    answer.put("reader", reader.text);
    answer.put("writer", writer.text);
    if (reader.schema != null && writer.schema != null) {
      answer.put("equal", reader.schema.equals(writer.schema));
      compare(reader.schema, writer.schema, answer);
    }
    return answer;
  }

  private static void compare(Schema reader, Schema writer, ObjectNode answer) {
    SchemaCompatibility.SchemaPairCompatibility pair;
    try {
      pair = SchemaCompatibility.checkReaderWriterCompatibility(reader, writer);
    } catch (RuntimeException error) {
      answer.put("exception", error.getClass().getSimpleName());
      return;
    }
    ArrayNode reasons = answer.putArray("reasons");
    for (SchemaCompatibility.Incompatibility each : pair.getResult().getIncompatibilities()) {
      ArrayNode reason = reasons.addArray();
      reason.add(each.getType().toString()).add(each.getLocation()).add(each.getMessage());
      reason.add(each.getReaderFragment().toString()).add(each.getWriterFragment().toString());
    }
  }

  private static class Parsed {
    Schema schema;
    String text;

    Parsed(List<String> references, String source, boolean isNew) {
      try {
        Schema.Parser parser = new Schema.Parser(isNew ? NameValidator.STRICT_VALIDATOR : NameValidator.NO_VALIDATION);
        parser.setValidateDefaults(isNew);
        List<Schema> known = new ArrayList<>();
        for (String reference : references) {
          known.add(parser.parse(reference));
        }
        Schema parsed = parser.parse(source);
        if (!isNew) {
          checkNames(parsed, Collections.newSetFromMap(new IdentityHashMap<>()));
        }
        text = parsed.toString(known, false);
        schema = parsed;
      } catch (RuntimeException error) {
        schema = null;
      }
    }
  }

  private static void checkNames(Schema schema, Set<Schema> seen) {
    if (!seen.add(schema)) {
      return;
    }
    switch (schema.getType()) {
      case RECORD:
        checkName(schema.getName());
        for (Schema.Field field : schema.getFields()) {
          checkName(field.name());
          checkNames(field.schema(), seen);
        }
        break;
      case ENUM:
        checkName(schema.getName());
        schema.getEnumSymbols().forEach(AvroVerdicts::checkName);
        break;
      case FIXED:
        checkName(schema.getName());
        break;
      case ARRAY:
        checkNames(schema.getElementType(), seen);
        break;
      case MAP:
        checkNames(schema.getValueType(), seen);
        break;
      case UNION:
        schema.getTypes().forEach(branch -> checkNames(branch, seen));
        break;
      default:
    }
  }

  private static void checkName(String name) {
    if (!NameValidator.UTF_VALIDATOR.validate(name).isOK()) {
      throw new IllegalArgumentException(name);
    }
  }

  private static class KeyValueMap extends LogicalType {
    KeyValueMap() {
      super("map");
    }

    @Override
    public void validate(Schema schema) {
      super.validate(schema);
      Schema items = schema.getElementType();
      if (items.getType() != Schema.Type.RECORD || items.getFields().size() != 2
          || !items.getFields().get(0).name().equals("key") || !items.getFields().get(1).name().equals("value")) {
        throw new IllegalArgumentException("not key and value");
      }
    }
  }

  private static class Variant extends LogicalType {
    Variant() {
      super("variant");
    }

    @Override
    public void validate(Schema schema) {
      super.validate(schema);
      if (schema.getFields().size() != 2 || !isBytes(schema.getField("metadata")) || !isBytes(schema.getField("value"))) {
        throw new IllegalArgumentException("not metadata and value");
      }
    }

    private static boolean isBytes(Schema.Field field) {
      return field != null && field.schema().getType() == Schema.Type.BYTES;
    }
  }
}

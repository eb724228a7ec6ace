// Runs Apache Kafka's command-line tools one after the other in one JVM, because the start of a JVM takes a second.
//
// Each line of the input is a call: the class and its arguments. Each line of the output is an answer: the exit status,
// what the tool printed to its output, and what it printed to its error stream. All but the status are base64, separated
// by tabs.

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import org.apache.kafka.common.utils.Exit;

public class Tools {
    /** Ends a tool at its first exit. Some tools catch it, report it as a failure and exit again. */
    static final class Exited extends RuntimeException {}

    private static final ByteArrayOutputStream output = new ByteArrayOutputStream();
    private static final ByteArrayOutputStream errors = new ByteArrayOutputStream();
    private static Integer status;
    private static String answer;

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        Exit.setExitProcedure((code, message) -> exit(code));
        Exit.setHaltProcedure((code, message) -> exit(code));
        System.setOut(new PrintStream(output, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
        BufferedReader calls = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String call = calls.readLine(); call != null; call = calls.readLine()) {
            output.reset();
            errors.reset();
            status = null;
            run(Arrays.stream(call.split("\t", -1)).map(Tools::decoded).toArray(String[]::new));
            answers.println(answer);
            answers.flush();
        }
        System.exit(0);
    }

    private static void exit(int code) {
        end(code);
        throw new Exited();
    }

    private static void end(int code) {
        if (status == null) {
            status = code;
            answer = code + "\t" + encoded(output) + "\t" + encoded(errors);
        }
    }

    private static String decoded(String word) {
        return new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8);
    }

    private static String encoded(ByteArrayOutputStream printed) {
        return Base64.getEncoder().encodeToString(printed.toByteArray());
    }

    private static void run(String[] call) throws Exception {
        String[] arguments = Arrays.copyOfRange(call, 1, call.length);
        try {
            Class.forName(call[0]).getMethod("main", String[].class).invoke(null, (Object) arguments);
            end(0);
        } catch (InvocationTargetException failed) {
            if (!(failed.getCause() instanceof Exited)) {
                failed.getCause().printStackTrace();
            }
            end(1);
        }
    }
}

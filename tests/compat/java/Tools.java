// Runs Apache Kafka's command-line tools one after the other in one JVM, because the start of a JVM takes a second.
//
// Each line of the input is a call: the class and its arguments, separated by tabs. Each line of the output is an
// answer: the exit status, a space, and what the tool printed to both streams, as base64.

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

    private static final ByteArrayOutputStream printed = new ByteArrayOutputStream();
    private static Integer status;
    private static byte[] answer;

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        Exit.setExitProcedure((code, message) -> exit(code));
        Exit.setHaltProcedure((code, message) -> exit(code));
        PrintStream stream = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setOut(stream);
        System.setErr(stream);
        BufferedReader calls = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String call = calls.readLine(); call != null; call = calls.readLine()) {
            printed.reset();
            status = null;
            run(call.split("\t", -1));
            answers.println(status + " " + Base64.getEncoder().encodeToString(answer));
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
            answer = printed.toByteArray();
        }
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

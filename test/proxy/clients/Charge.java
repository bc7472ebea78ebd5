import java.io.InputStream;
import java.io.OutputStream;
import java.net.HttpURLConnection;
import java.net.URL;
import java.nio.charset.StandardCharsets;

/**
 * Posts a form the way Stripe's client for Java does, on the JDK's HttpURLConnection, which by itself sends a POST again
 * whose connection ends without an answer. Arguments: URL, vault key, idempotency key, form. Prints status and body.
 */
public class Charge {
  public static void main(String[] arguments) throws Exception {
    HttpURLConnection connection = (HttpURLConnection) new URL(arguments[0]).openConnection();
    connection.setRequestMethod("POST");
    connection.setDoOutput(true);
    connection.setUseCaches(false);
    connection.setRequestProperty("Authorization", "Bearer " + arguments[1]);
    connection.setRequestProperty("Idempotency-Key", arguments[2]);
    connection.setRequestProperty("Content-Type", "application/x-www-form-urlencoded;charset=UTF-8");
    connection.setRequestProperty("Accept-Charset", "UTF-8");
    try (OutputStream form = connection.getOutputStream()) {
      form.write(arguments[3].getBytes(StandardCharsets.UTF_8));
    }
    int status = connection.getResponseCode();
    InputStream answer = status < 400 ? connection.getInputStream() : connection.getErrorStream();
    System.out.println(status);
    System.out.println(new String(answer.readAllBytes(), StandardCharsets.UTF_8));
  }
}

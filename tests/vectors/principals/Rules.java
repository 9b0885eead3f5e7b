import java.io.*; import java.util.*; import java.nio.charset.StandardCharsets; import org.apache.kafka.common.security.ssl.SslPrincipalMapper;
public class Rules { public static void main(String[] a) throws Exception {
 BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
 PrintStream out = new PrintStream(System.out, true, "UTF-8");
 String l; while ((l = in.readLine()) != null) { String[] p = l.split("\t", -1);
  String s; try { s = "=" + SslPrincipalMapper.fromRules(p[0]).getName(p[1]); } catch (IllegalArgumentException e) { s = "!bad"; } catch (IOException e) { s = "!none"; } catch (RuntimeException e) { s = "!fails"; }
  out.println(l + "\t" + s); } } }

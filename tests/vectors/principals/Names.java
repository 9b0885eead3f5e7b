import java.io.*; import java.util.*; import java.nio.charset.StandardCharsets; import javax.security.auth.x500.X500Principal;
public class Names { public static void main(String[] a) throws Exception {
 BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
 PrintStream out = new PrintStream(System.out, true, "UTF-8");
 String l; while ((l = in.readLine()) != null) {
  String s; try { s = new X500Principal(HexFormat.of().parseHex(l.trim())).getName(); } catch (IllegalArgumentException e) { s = "!refused"; }
  out.println(l.trim() + " " + HexFormat.of().formatHex(s.getBytes(StandardCharsets.UTF_8))); } } }

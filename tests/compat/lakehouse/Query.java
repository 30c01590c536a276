import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.spark.sql.SparkSession;

/**
 * Runs SQL in a Spark that has the packages of Delta and Iceberg, and not Penstock.
 *
 * <p>Arguments: settings of the session, such as `spark.sql.catalog.rest.type=rest`. Each line of standard input is a
 * statement. Its rows are printed as JSON, one a line, and a line `end` after them.
 */
public class Query {
  public static void main(String[] arguments) throws Exception {
    SparkSession.Builder builder = SparkSession.builder().master("local[1]").config("spark.ui.enabled", "false");
    for (String each : arguments) {
      String[] setting = each.split("=", 2);
      builder = builder.config(setting[0], setting[1]);
    }
    SparkSession spark = builder.getOrCreate();
    BufferedReader statements = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String sql = statements.readLine(); sql != null; sql = statements.readLine()) {
      for (String row : spark.sql(sql).toJSON().collectAsList()) {
        System.out.println(row);
      }
      System.out.println("end");
    }
    spark.stop();
  }
}

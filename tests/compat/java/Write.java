import com.couchbase.client.core.error.CouchbaseException;
import com.couchbase.client.core.error.DocumentNotFoundException;
import com.couchbase.client.core.msg.kv.DurabilityLevel;
import com.couchbase.client.java.Bucket;
import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.Collection;
import com.couchbase.client.java.kv.UpsertOptions;
import java.time.Duration;
import java.util.List;

/**
 * Writes documents with Couchbase's Java SDK, and reads them back. tests/compat/cluster_clients.py describes the output.
 *
 * <p>Arguments: connection string, user, password, bucket.
 */
public class Write implements Runnable {
  private static final Duration PATIENCE = Duration.ofMinutes(1);

  private static volatile boolean over = false;

  private final Collection collection;
  private final String name;
  private final DurabilityLevel level;

  private Write(Collection collection, String name, DurabilityLevel level) {
    this.collection = collection;
    this.name = name;
    this.level = level;
  }

  public static void main(String[] arguments) throws Exception {
    try (Cluster cluster = Cluster.connect(arguments[0], arguments[1], arguments[2])) {
      Bucket bucket = cluster.bucket(arguments[3]);
      bucket.waitUntilReady(PATIENCE);
      Collection collection = bucket.defaultCollection();
      List<Thread> running =
          List.of(
              new Thread(new Write(collection, "plain", DurabilityLevel.NONE)),
              new Thread(new Write(collection, "durable", DurabilityLevel.MAJORITY)));
      running.forEach(Thread::start);
      while (System.in.read() >= 0) {}
      over = true;
      for (Thread each : running) {
        each.join();
      }
    }
  }

  @Override
  public void run() {
    try {
      read(write());
    } catch (RuntimeException error) {
      error.printStackTrace();
      System.exit(1);
    }
  }

  /** Writes each document twice, and returns the number of writes. */
  private int write() {
    int count = 0;
    for (; !over; count++) {
      String key = name + "-" + count / 2;
      try {
        collection.upsert(key, count, UpsertOptions.upsertOptions().durability(level));
      } catch (CouchbaseException error) {
        System.err.println(key + " " + error); // it is not known whether the document was written
        continue;
      }
      System.out.println(name + " " + key + " " + count);
    }
    return count;
  }

  private void read(int count) {
    for (int number = 0; number < (count + 1) / 2; number++) {
      String key = name + "-" + number;
      try {
        System.out.println("kept " + key + " " + collection.get(key).contentAs(Integer.class));
      } catch (DocumentNotFoundException error) {
        continue; // the write was not acknowledged, or it was lost
      }
    }
  }
}

import com.couchbase.client.dcp.Client;
import com.couchbase.client.dcp.StreamFrom;
import com.couchbase.client.dcp.StreamTo;
import com.couchbase.client.dcp.highlevel.DatabaseChangeListener;
import com.couchbase.client.dcp.highlevel.Deletion;
import com.couchbase.client.dcp.highlevel.FlowControlMode;
import com.couchbase.client.dcp.highlevel.Mutation;
import com.couchbase.client.dcp.highlevel.StreamFailure;
import java.time.Instant;
import java.util.concurrent.CountDownLatch;

/**
 * Counts the mutations of a bucket with java-dcp-client, for a benchmark.
 *
 * <p>Arguments: address of the key-value port, address of the HTTP port (unused), user, password, bucket, number of
 * mutations to wait for, and `beginning` or `now`. With `now` it prints the key and the arrival of each one.
 */
public class Count {
  private static final int FLOW_CONTROL_BYTES = 20 * 1024 * 1024;

  public static void main(String[] arguments) throws Exception {
    int wanted = Integer.parseInt(arguments[5]);
    boolean now = arguments[6].equals("now");
    Arrivals arrivals = new Arrivals(wanted, now);
    try (Client client =
        Client.builder()
            .connectionString("couchbase://" + arguments[0])
            .credentials(arguments[2], arguments[3])
            .bucket(arguments[4])
            .flowControl(FLOW_CONTROL_BYTES)
            .build()) {
      client.listener(arrivals, FlowControlMode.AUTOMATIC);
      client.connect().block();
      client.initializeState(now ? StreamFrom.NOW : StreamFrom.BEGINNING, StreamTo.INFINITY).block();
      System.out.println("starting");
      client.startStreaming().block();
      System.out.println("ready");
      arrivals.done.await();
      System.out.println("done " + arrivals.bytes);
      System.in.read();
      arrivals.print();
    }
  }

  private static class Arrivals implements DatabaseChangeListener {
    final CountDownLatch done = new CountDownLatch(1);
    long bytes;
    private final int wanted;
    private final String[] keys;
    private final long[] times;
    private int count;

    Arrivals(int wanted, boolean timed) {
      this.wanted = wanted;
      keys = new String[timed ? wanted : 0];
      times = new long[keys.length];
    }

    @Override
    public synchronized void onMutation(Mutation change) {
      bytes += change.getContent().length;
      if (count < keys.length) {
        Instant now = Instant.now();
        keys[count] = change.getKey();
        times[count] = now.getEpochSecond() * 1_000_000_000L + now.getNano();
      }
      if (++count == wanted) {
        done.countDown();
      }
    }

    @Override
    public void onDeletion(Deletion change) {}

    @Override
    public void onFailure(StreamFailure failure) {
      failure.getCause().printStackTrace();
      System.exit(1);
    }

    void print() {
      StringBuilder lines = new StringBuilder();
      for (int index = 0; index < keys.length; index++) {
        lines.append(keys[index]).append(' ').append(times[index]).append('\n');
      }
      System.out.print(lines);
    }
  }
}

import com.couchbase.client.dcp.Client;
import com.couchbase.client.dcp.StreamFrom;
import com.couchbase.client.dcp.StreamTo;
import com.couchbase.client.dcp.config.CompressionMode;
import com.couchbase.client.dcp.highlevel.DatabaseChangeListener;
import com.couchbase.client.dcp.highlevel.Deletion;
import com.couchbase.client.dcp.highlevel.FlowControlMode;
import com.couchbase.client.dcp.highlevel.Mutation;
import com.couchbase.client.dcp.highlevel.Rollback;
import com.couchbase.client.dcp.highlevel.StreamEnd;
import com.couchbase.client.dcp.highlevel.StreamFailure;
import com.couchbase.client.dcp.message.StreamEndReason;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Prints the changes of a bucket, one per line, with flow control and compression, as the Kafka and Spark connectors use
 * java-dcp-client. A mutation has its value, vbucket and seqno at the end.
 *
 * <p>Arguments: connection string, user, password, bucket, `now` (end there) or `never` (until standard input ends), and
 * `all`, which is the client's default, or `persisted` for the connectors' persistence polling every 100 ms.
 */
public class Dcp {
  private static final int FLOW_CONTROL_BYTES = 16 * 1024 * 1024;

  public static void main(String[] arguments) throws Exception {
    boolean follow = arguments[4].equals("never");
    Client.Builder builder =
        Client.builder()
            .connectionString(arguments[0])
            .credentials(arguments[1], arguments[2])
            .bucket(arguments[3])
            .collectionsAware(true)
            .compression(CompressionMode.ENABLED)
            .flowControl(FLOW_CONTROL_BYTES);
    if (arguments[5].equals("persisted")) {
      builder.mitigateRollbacks(100, TimeUnit.MILLISECONDS);
    }
    try (Client client = builder.build()) {
      CountDownLatch open = new CountDownLatch(1);
      AtomicInteger streams = new AtomicInteger();
      client.listener(
          new DatabaseChangeListener() {
            @Override
            public void onMutation(Mutation change) {
              String kind = change.isJson() ? " json " : " binary ";
              String value = new String(change.getContent(), StandardCharsets.UTF_8);
              String place = " " + change.getVbucket() + " " + change.getOffset().getSeqno();
              print("mutation", change.getQualifiedKey() + kind + value + place);
            }

            @Override
            public void onDeletion(Deletion change) {
              print(change.isDueToExpiration() ? "expiration" : "deletion", change.getQualifiedKey());
            }

            @Override
            public void onRollback(Rollback rollback) {
              print("rollback", rollback.getVbucket() + " " + rollback.getSeqno());
              rollback.resume();
            }

            @Override
            public void onStreamEnd(StreamEnd end) {
              if (end.getReason() != StreamEndReason.OK) {
                print("end", end.getVbucket() + " " + end.getReason().name());
              }
              if (streams.decrementAndGet() == 0) {
                open.countDown();
              }
            }

            @Override
            public void onFailure(StreamFailure failure) {
              failure.getCause().printStackTrace();
              System.exit(1);
            }
          },
          FlowControlMode.AUTOMATIC);
      client.connect().block();
      client.initializeState(StreamFrom.BEGINNING, follow ? StreamTo.INFINITY : StreamTo.NOW).block();
      client.sessionState().foreachPartition(state -> streams.addAndGet(state.isAtEnd() ? 0 : 1));
      boolean empty = streams.get() == 0;
      client.startStreaming().block();
      print("streaming", arguments[3]);
      if (follow) {
        while (System.in.read() >= 0) {}
      } else if (!empty) {
        open.await();
      }
    }
  }

  private static synchronized void print(String event, String about) {
    System.out.println(event + " " + about);
  }
}

import com.couchbase.client.core.error.BucketNotFoundException;
import com.couchbase.client.core.error.CasMismatchException;
import com.couchbase.client.core.error.DocumentExistsException;
import com.couchbase.client.core.error.DocumentNotFoundException;
import com.couchbase.client.core.msg.kv.DurabilityLevel;
import com.couchbase.client.java.Bucket;
import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.Collection;
import com.couchbase.client.java.json.JsonObject;
import com.couchbase.client.java.kv.GetResult;
import com.couchbase.client.java.kv.IncrementOptions;
import com.couchbase.client.java.kv.InsertOptions;
import com.couchbase.client.java.kv.LookupInResult;
import com.couchbase.client.java.kv.LookupInSpec;
import com.couchbase.client.java.kv.MutateInSpec;
import com.couchbase.client.java.kv.MutationResult;
import com.couchbase.client.java.kv.PersistTo;
import com.couchbase.client.java.kv.ReplaceOptions;
import com.couchbase.client.java.kv.ReplicateTo;
import com.couchbase.client.java.kv.UpsertOptions;
import com.couchbase.client.java.manager.bucket.BucketSettings;
import com.couchbase.client.java.manager.bucket.BucketType;
import com.couchbase.client.java.manager.collection.CollectionManager;
import com.couchbase.client.java.manager.collection.ScopeSpec;
import com.couchbase.client.java.transactions.TransactionGetResult;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;

/**
 * Tries a node with Couchbase's Java SDK: prints the name of each act that went well, and ends with status 1 at the first
 * difference.
 *
 * <p>Arguments: connection string, user, password, bucket.
 */
public class Sdk {
  private static final Duration PATIENCE = Duration.ofSeconds(20);

  private final Cluster cluster;
  private final Bucket bucket;
  private final Collection collection;

  private Sdk(Cluster cluster, String bucket) {
    this.cluster = cluster;
    this.bucket = cluster.bucket(bucket);
    this.collection = this.bucket.defaultCollection();
  }

  public static void main(String[] arguments) {
    try (Cluster cluster = Cluster.connect(arguments[0], arguments[1], arguments[2])) {
      cluster.waitUntilReady(PATIENCE);
      Sdk sdk = new Sdk(cluster, arguments[3]);
      sdk.bucket.waitUntilReady(PATIENCE);
      sdk.documents();
      sdk.durability();
      sdk.parts();
      sdk.collections();
      sdk.buckets();
      sdk.transactions();
    } catch (Throwable error) {
      error.printStackTrace();
      System.exit(1);
    }
    System.exit(0); // threads of the transactions' clean-up would hold the process
  }

  private void documents() {
    MutationResult stored = collection.upsert("java", JsonObject.create().put("n", 1));
    check(stored.mutationToken().isPresent(), true);
    GetResult found = collection.get("java");
    check(found.contentAsObject().getInt("n"), 1);
    check(found.cas(), stored.cas());
    refused(DocumentExistsException.class, () -> collection.insert("java", "again"));
    collection.replace("java", "second", ReplaceOptions.replaceOptions().cas(found.cas()));
    refused(
        CasMismatchException.class,
        () -> collection.replace("java", "third", ReplaceOptions.replaceOptions().cas(found.cas())));
    check(collection.binary().increment("java-count", IncrementOptions.incrementOptions().initial(40)).content(), 40L);
    check(collection.binary().increment("java-count").content(), 41L);
    long locked = collection.getAndLock("java", Duration.ofSeconds(15)).cas();
    collection.unlock("java", locked);
    collection.insert("java-expires", "soon", InsertOptions.insertOptions().expiry(Duration.ofHours(1)));
    collection.remove("java");
    refused(DocumentNotFoundException.class, () -> collection.get("java"));
    check(collection.exists("java").exists(), false);
    System.out.println("documents");
  }

  private void durability() {
    for (DurabilityLevel level : DurabilityLevel.values()) {
      collection.upsert("java-durable", level.name(), UpsertOptions.upsertOptions().durability(level));
      check(collection.get("java-durable").contentAs(String.class), level.name());
    }
    collection.upsert(
        "java-durable", "observed", UpsertOptions.upsertOptions().durability(PersistTo.ACTIVE, ReplicateTo.NONE));
    System.out.println("durability");
  }

  private void parts() {
    collection.upsert("java-parts", Map.of("name", "Stout", "tags", List.of("dark")));
    collection.mutateIn(
        "java-parts",
        List.of(
            MutateInSpec.upsert("_sync.rev", 7).xattr().createPath(),
            MutateInSpec.upsert("abv", 4.5),
            MutateInSpec.arrayAppend("tags", List.of("dry"))));
    LookupInResult found =
        collection.lookupIn(
            "java-parts",
            List.of(
                LookupInSpec.get("_sync.rev").xattr(),
                LookupInSpec.get("abv"),
                LookupInSpec.count("tags"),
                LookupInSpec.exists("ibu")));
    check(found.contentAs(0, Integer.class), 7);
    check(found.contentAs(1, Double.class), 4.5);
    check(found.contentAs(2, Integer.class), 2);
    check(found.exists(3), false);
    System.out.println("parts");
  }

  private void collections() {
    CollectionManager manager = bucket.collections();
    manager.createScope("java");
    manager.createCollection("java", "beers");
    ScopeSpec scope =
        manager.getAllScopes().stream().filter(each -> each.name().equals("java")).findFirst().orElseThrow();
    check(scope.collections().stream().map(each -> each.name()).collect(Collectors.toSet()), Set.of("beers"));
    Collection beers = bucket.scope("java").collection("beers");
    beers.upsert("k", "a beer");
    check(beers.get("k").contentAs(String.class), "a beer");
    check(collection.exists("k").exists(), false);
    manager.dropScope("java");
    System.out.println("collections");
  }

  private void buckets() {
    cluster
        .buckets()
        .createBucket(BucketSettings.create("java-made").ramQuotaMB(100).bucketType(BucketType.EPHEMERAL).numReplicas(0));
    check(cluster.buckets().getAllBuckets().keySet().containsAll(Set.of(bucket.name(), "java-made")), true);
    check(cluster.buckets().getBucket("java-made").bucketType(), BucketType.EPHEMERAL);
    Bucket made = cluster.bucket("java-made");
    made.waitUntilReady(PATIENCE);
    made.defaultCollection().upsert("k", "v");
    check(made.defaultCollection().get("k").contentAs(String.class), "v");
    cluster.buckets().dropBucket("java-made");
    refused(BucketNotFoundException.class, () -> cluster.buckets().getBucket("java-made"));
    System.out.println("buckets");
  }

  private void transactions() {
    cluster
        .transactions()
        .run(
            attempt -> {
              TransactionGetResult inserted = attempt.insert(collection, "java-staged", "first");
              attempt.replace(inserted, "second");
            });
    check(collection.get("java-staged").contentAs(String.class), "second");
    System.out.println("transactions");
  }

  private static void check(Object found, Object expected) {
    if (!expected.equals(found)) {
      throw new AssertionError("found " + found + ", expected " + expected);
    }
  }

  private static void refused(Class<? extends Exception> expected, Runnable act) {
    try {
      act.run();
    } catch (RuntimeException error) {
      if (expected.isInstance(error)) {
        return;
      }
      throw error;
    }
    throw new AssertionError("expected " + expected.getSimpleName());
  }
}

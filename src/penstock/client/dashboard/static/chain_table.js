// The table of `penstock cluster status`: owner, replicas, lag, age and state of each vbucket. The page asks for it only
// while it is open.
import { formatNumber, formatSeconds, isKnown, setText, showEmpty } from "./dom.js";
import { Refused, bucketPath, getJson } from "./node_api.js";
import { showRows } from "./node_tables.js";

/** Return one value for each replica, in the order of the replicas. */
const ofReplicas = (row, values, format) => row.replicas.map((name) => (isKnown(values[name]) ? format(values[name]) : "?")).join(", ");

const COLUMNS = [
  ["Vbucket", true, (row) => formatNumber(row.vbucket)],
  ["Owner", false, (row) => row.owner || "none"],
  ["Replicas", false, (row) => row.replicas.join(", ") || "none"],
  ["Behind", true, (row) => ofReplicas(row, row.lag, formatNumber)],
  ["Age", true, (row) => ofReplicas(row, row.age, formatSeconds)],
  ["State", false, (row) => row.state],
];

export class ChainTable {
  constructor(card, box, count, place) {
    Object.assign(this, { card, box, count, place, bucket: "", isAsking: false });
    box.addEventListener("toggle", () => this.#load());
  }

  /** Show the newest table of a bucket. A node alone has none: it does not ask the others. */
  update(document) {
    this.bucket = document.bucket;
    this.card.hidden = !document.has_chains;
    if (document.has_chains) this.#load();
  }

  async #load() {
    if (!this.box.open || this.isAsking) return;
    this.isAsking = true;
    const bucket = this.bucket;
    try {
      const { rows } = await getJson(`${bucketPath(bucket)}/chains`);
      if (bucket === this.bucket) this.#show(rows);
    } catch (error) {
      if (!(error instanceof Refused || error instanceof TypeError)) throw error;
      showEmpty(this.place, error instanceof Refused ? `The server refuses: ${error.message}.` : "The server does not answer.");
    } finally {
      this.isAsking = false;
    }
  }

  #show(rows) {
    const good = (rows ?? []).filter((row) => row.state === "ok").length;
    setText(this.count, rows === null ? "" : `${formatNumber(good)} of ${formatNumber(rows.length)} vbuckets ok`);
    showRows(this.place, "Owners and replicas", rows, COLUMNS, {
      keyOf: (row) => row.vbucket, empty: "The bucket has no vbuckets.", classOf: (row) => (row.state === "ok" ? null : "lost-node"),
    });
  }
}

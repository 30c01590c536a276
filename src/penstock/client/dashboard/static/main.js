// The dashboard: follows the state of a bucket, and shows it in its parts.
import { ChainTable } from "./chain_table.js";
import { formatSeconds, make, setText } from "./dom.js";
import { followState } from "./node_api.js";
import { showCollections, showCommands, showNodes, showStats, showStorage, showTimings, showTotals, showUsers } from "./node_tables.js";
import { RateCharts } from "./rate_charts.js";
import { RollbackList } from "./rollback_list.js";
import { StreamTable } from "./stream_table.js";
import { TailView } from "./tail_view.js";
import { VbucketDetail } from "./vbucket_detail.js";
import { VbucketGrid } from "./vbucket_grid.js";

const find = (id) => document.getElementById(id);
const grid = new VbucketGrid(find("cells"), find("legend"), { show: (id) => detail.hover(id), choose: (id) => detail.choose(id) });
const detail = new VbucketDetail(find("detail"), grid);
const chains = new ChainTable(find("chains-card"), find("chains-box"), find("chains-count"), find("chains"));
const streams = new StreamTable(find("streams"), find("streams-count"), find("confirm"));
const rollbacks = new RollbackList(find("rollbacks"), find("rollbacks-count"));
const charts = new RateCharts(find("rates"), find("rates-span"));
const tail = new TailView(find("tail"), find("tail-state"));

let endFollowing = () => {};
let bucket = new URLSearchParams(location.search).get("bucket");
let shown = null; // the newest document
let before = 0; // its time

function follow(name) {
  endFollowing();
  bucket = name;
  shown = null;
  endFollowing = followState(name, show, showLost);
}

function show(found) {
  setText(find("link"), "Live");
  find("link").className = "link live";
  find("problem").hidden = true;
  const isOther = shown === null || shown.bucket !== found.bucket;
  if (isOther) {
    document.title = `${found.bucket} · Penstock`;
    detail.reset(found.bucket, found.user.may_read_changes);
    find("tail-card").hidden = found.user.may_read_changes === null;
    find("cells-help").textContent = `Arrow keys move, Enter ${found.user.may_read_changes === null ? "keeps a vbucket beside the grid, Escape lets it go." : "shows the changes of a vbucket, Escape hides them."}`;
    tail.reset(found.bucket, found.user.may_read_changes);
  }
  showHeader(found);
  const shownRow = detail.shown === null ? null : grid.rows[detail.shown];
  grid.update(found.vbuckets, found.complete, Math.max(0.2, found.at - before));
  detail.refresh(false, shownRow !== (detail.shown === null ? null : grid.rows[detail.shown]) || found.endpoints?.length > 0);
  charts.update(found.points, found.complete);
  showTotals(find("totals"), found, charts.newest);
  chains.update(found);
  streams.update(found);
  rollbacks.update(found);
  showStorage(find("storage"), found);
  showCommands(find("commands"), found);
  showTimings(find("timings"), found);
  showNodes(find("nodes"), found);
  showCollections(find("collections"), found);
  showUsers(find("users-card"), find("users"), found);
  showStats(find("stats-box"), find("stats"), found);
  shown = found;
  before = found.at;
  document.body.dataset.at = found.at;
}

function showHeader(found) {
  const select = find("bucket");
  if ([...select.options].map((option) => option.value).join("\n") !== found.buckets.join("\n"))
    select.replaceChildren(...found.buckets.map((name) => make("option", { value: name }, name)));
  if (document.activeElement !== select) select.value = found.bucket;
  setText(find("address"), found.node.address);
  const facts = [found.user.name || "no login", found.node.version ?? "version unknown", `up ${formatSeconds(found.node.uptime)}`];
  setText(find("viewer"), facts.filter(Boolean).join(" · "));
}

function showLost(sentence) {
  setText(find("link"), "Lost");
  find("link").className = "link lost";
  setText(find("problem"), sentence);
  find("problem").hidden = false;
}

find("bucket").addEventListener("change", (event) => {
  history.replaceState(null, "", `?bucket=${encodeURIComponent(event.target.value)}`);
  follow(event.target.value);
});
find("modes").addEventListener("change", (event) => grid.setMode(event.target.value));
find("stats-box").addEventListener("toggle", () => shown && showStats(find("stats-box"), find("stats"), shown));
follow(bucket);

// The smaller parts: totals, memory and disk, latencies, nodes, collections, users, all statistics.
import { formatBytes, formatNumber, formatRate, formatSeconds, make, makeTable, reconcile, setText, showEmpty } from "./dom.js";

/** Show the totals. rates: of the charts. */
export function showTotals(place, document, rates) {
  const { stats, endpoints } = document;
  const lag = endpoints.reduce((most, one) => (one.lag_seqnos > (most?.lag_seqnos ?? 0) ? one : most), null);
  const quota = Number(stats.ep_max_size);
  const tiles = [
    ["Documents", formatNumber(Number(stats.curr_items)), `${formatNumber(Number(stats.vb_active_num))} active vbuckets`, "curr_items"],
    ["Changes", `${formatRate(rates.changes)}/s`, `${formatRate(rates.items)}/s sent`],
    ["Sent", `${formatBytes(rates.bytes)}/s`, endpoints.length === 1 ? "1 connection" : `${formatNumber(endpoints.length)} connections`],
    ["Largest lag", lag ? formatNumber(lag.lag_seqnos) : "0", lag ? `${lag.label}, ${formatSeconds(lag.lag_seconds)}` : "all consumers in step"],
    ["Memory", formatBytes(Number(stats.mem_used)), quota ? `of ${formatBytes(quota)}` : "no quota"],
    ["Disk", document.on_disk ? formatBytes(Number(stats.ep_db_file_size)) : "–", document.on_disk ? `${formatNumber(Number(stats.ep_queue_size))} changes to write` : "bucket in memory"],
  ];
  reconcile(place, tiles, ([title]) => title, ([title, , , stat]) =>
    make("div", {}, make("dt", {}, title), make("dd", { class: "value", "data-total": stat }), make("dd", { class: "note" })),
  (child, [, value, note]) => { setText(child.children[1], value); setText(child.children[2], note); });
}

export function showStorage(place, document) {
  const { stats } = document, number = (name) => Number(stats[name] ?? 0);
  const live = number("ep_log_live_bytes"), dead = number("ep_log_dead_bytes"), quota = number("ep_max_size");
  const rows = [
    ["Memory", quota ? `${formatBytes(number("mem_used"))} of ${formatBytes(quota)}` : formatBytes(number("mem_used")), quota ? number("mem_used") / quota : null],
    ["Index in memory", formatBytes(number("ep_index_bytes"))],
    ["Log, live", formatBytes(live)],
    ["Log, superseded", `${formatBytes(dead)} (${live + dead ? Math.round((100 * dead) / (live + dead)) : 0} %)`],
    ["Segments", formatNumber(number("ep_log_segments"))],
    ...(document.on_disk ? [
      ["Files", formatBytes(number("ep_db_file_size"))],
      ["Changes to write", formatNumber(number("ep_queue_size"))],
      ["Commits", `${formatNumber(number("ep_commit_num"))}, last ${formatSeconds(number("ep_commit_time") / 1000)}`],
      ["Compactions", formatNumber(number("ep_compactions"))],
    ] : []),
    ["Refused changes", formatNumber(number("ep_oom_errors") + number("ep_tmp_oom_errors"))],
    ...(stats.ep_storage_fault ? [["Fault", stats.ep_storage_fault]] : []),
  ];
  place.className = "storage";
  place.list ??= make("dl", { class: "facts" });
  if (place.firstChild !== place.list) place.replaceChildren(place.list);
  reconcile(place.list, rows, ([name]) => name, ([name]) => make("div", {}, make("dt", {}, name), make("dd")), (child, [name, text, part]) => {
    const value = child.children[1];
    if (part === null || part === undefined) { setText(value, text); return; }
    value.text ??= value.appendChild(make("span"));
    value.meter ??= value.appendChild(make("meter", { min: 0, max: 1, low: 0.75, high: 0.85, optimum: 0, "aria-label": `${name} in use` }));
    setText(value.text, text);
    value.meter.value = Math.min(1, part);
  });
}

/** Show rows of texts in a table. columns: [title, is a number, text of a row]. */
function showRows(place, label, rows, columns, { keyOf, empty, classOf = () => null }) {
  if (!rows.length) { showEmpty(place, empty); return; }
  place.table ??= makeTable(label, columns);
  if (place.firstChild !== place.table.region) place.replaceChildren(place.table.region);
  reconcile(place.table.body, rows, keyOf, () => make("tr", {}, columns.map(([, isNumber]) => make("td", { class: isNumber ? "number" : null }))), (child, row) => {
    columns.forEach(([, , format], at) => setText(child.children[at], format(row)));
    child.className = classOf(row) ?? "";
  });
}

const TASKS = { flusher: "Commit to disk", compactor: "Compaction", expiry_pager: "Expiry pager", key_loader: "Loading keys", stat: "Statistics" };

export function showTimings(place, document) {
  const quantile = (number) => (row) => (row.count ? `≤ ${formatSeconds(row.quantiles[number])}` : "–");
  showRows(place, "Latencies", document.timings, [
    ["Work", false, (row) => TASKS[row.name] ?? row.name], ["Runs", true, (row) => formatNumber(row.count)],
    ["50 %", true, quantile(0)], ["95 %", true, quantile(1)], ["99 %", true, quantile(2)],
    ["Last", true, (row) => (row.count ? formatSeconds(row.last) : "–")],
  ], { keyOf: (row) => row.name, empty: "Nothing was timed yet." });
}

export function showNodes(place, note, document) {
  const { nodes, rebalance } = document;
  const status = (row) => (row.membership === "inactiveFailed" ? "failed over" : row.status === "healthy" ? "healthy" : "lost");
  setText(note, rebalance.running ? `rebalance runs${rebalance.progress === null ? "" : `, ${Math.round(100 * rebalance.progress)} % done`}` : rebalance.problem ? `the last rebalance failed: ${rebalance.problem}` : "");
  showRows(place, "Nodes of the cluster", nodes, [
    ["Node", false, (row) => (row.is_this ? `${row.address} (this one)` : row.address)],
    ["Status", false, (row) => `${status(row) === "healthy" ? "●" : "▲"} ${status(row)}`],
    ["Active", true, (row) => formatNumber(row.active)], ["Replicas", true, (row) => formatNumber(row.replicas)],
    ["Moves", true, (row) => (row.name in rebalance.by_node ? `${Math.round(100 * rebalance.by_node[row.name])} %` : "–")],
  ], { keyOf: (row) => row.name, empty: "The node is alone.", classOf: (row) => (status(row) === "healthy" ? null : "lost-node") });
}

export function showCollections(place, document) {
  showRows(place, "Collections", document.collections, [
    ["Scope", false, (row) => row.scope], ["Collection", false, (row) => row.name], ["Documents", true, (row) => formatNumber(row.items)],
  ], { keyOf: (row) => `${row.scope}.${row.name}`, empty: "Your user sees no collection." });
}

export function showUsers(card, place, document) {
  card.hidden = document.users === null;
  if (document.users === null) return;
  showRows(place, "Users", document.users, [
    ["User", false, (row) => row.name], ["Roles", false, (row) => row.roles.join(", ")],
    ["Last login", true, (row) => (row.login_seconds === null ? "none since the start" : `${formatSeconds(Math.floor(row.login_seconds))} ago`)],
    ["From", false, (row) => row.login_address ?? ""],
  ], { keyOf: (row) => row.name, empty: "There are no users yet." });
}

/** Show all statistics as they are; only while they can be seen. */
export function showStats(box, place, document) {
  if (!box.open) return;
  place.list ??= make("dl");
  if (place.firstChild !== place.list) place.replaceChildren(place.list);
  reconcile(place.list, Object.entries(document.stats), ([name]) => name, ([name]) =>
    make("div", {}, make("dt", {}, name), make("dd", { "data-stat": name })), (child, [, value]) => setText(child.children[1], value));
}

// The branches of a vbucket as a graph: its failover log, where consumers stand, and the common point of a rollback.
import { formatNumber, formatVbuuid, makeSvg } from "./dom.js";

const RIGHT = 40, LANE = 46, TOP = 30;
const MOST_LANES = 6;

/**
 * Return the graph as an SVG element.
 * log: [vbuuid, seqno] newest first; high: the newest seqno; readers: [{label, seqno}];
 * rollback: {vbuuid, start_seqno, seqno, consumer} or null; width: of the place, in pixels.
 */
export function drawBranches({ log, high, readers = [], rollback = null, width = 760 }) {
  width = Math.min(Math.max(width, 300), 860);
  const isNarrow = width < 560;
  const left = isNarrow ? 16 : 150;
  const lanes = listLanes(log, high);
  const stray = rollback && !lanes.some((lane) => lane.vbuuid === rollback.vbuuid);
  if (stray) lanes.unshift({ vbuuid: rollback.vbuuid, start: 0, end: 0, isStray: true });
  const [low, top] = findDomain(lanes, high, readers, rollback);
  const x = (seqno) => left + ((width - left - RIGHT) * (Math.min(Math.max(seqno, low), top) - low)) / (top - low || 1);
  const y = (number) => TOP + LANE * number + 12;
  const height = y(lanes.length - 1) + 46;
  const svg = makeSvg("svg", { class: "branches", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": describe(log, high, rollback) });
  svg.append(makeSvg("line", { class: "axis", x1: left, x2: width - RIGHT, y1: height - 26, y2: height - 26 }));
  const taken = [];
  lanes.forEach((lane, number) => {
    svg.append(makeText(isNarrow ? left : 8, y(number) + (isNarrow ? -9 : 4), formatVbuuid(lane.vbuuid), lane.isStray ? "gone mono" : "strong mono"));
    if (lane.isStray) return;
    const next = lanes[number + 1];
    svg.append(makeSvg("path", { class: "line", d: `M${x(lane.start)} ${y(number)}H${Math.max(x(lane.end), x(lane.start) + 1)}` }));
    if (next) svg.append(makeSvg("path", { class: "fork", d: `M${x(lane.end)} ${y(number)}C${x(lane.end) + 14} ${y(number)} ${x(next.start) - 4} ${y(number + 1)} ${x(next.start) + 8} ${y(number + 1)}` }));
    else svg.append(makeSvg("circle", { class: "end", cx: x(lane.end), cy: y(number), r: 5 }));
  });
  const mark = (seqno, text, anchor = "middle") => {
    const at = x(seqno);
    if (taken.some((other) => Math.abs(other - at) < 74)) return;
    taken.push(at);
    svg.append(makeSvg("line", { class: "axis", x1: at, x2: at, y1: TOP - 8, y2: height - 26 }), makeText(at, height - 9, text, "", anchor));
  };
  if (rollback) drawRollback(svg, lanes, rollback, x, y, mark, width);
  mark(high, `high ${formatNumber(high)}`);
  for (const lane of lanes) if (!lane.isStray && lane.start) mark(lane.start, formatNumber(lane.start));
  drawReaders(svg, readers, lanes, x, y, left, width);
  return svg;
}

function drawRollback(svg, lanes, rollback, x, y, mark, width) {
  const number = lanes.findIndex((lane) => lane.vbuuid === rollback.vbuuid), lane = lanes[number];
  const from = lane.isStray ? 0 : Math.min(lane.end, rollback.start_seqno);
  const stood = x(rollback.start_seqno), point = x(rollback.seqno), at = y(number);
  if (rollback.start_seqno > from) svg.append(makeSvg("path", { class: "void", d: `M${x(from)} ${at}H${stood}` }));
  const bend = Math.max(at - 34, 6);
  svg.append(makeSvg("path", { class: "back", d: `M${stood} ${at - 8}C${stood} ${bend} ${point} ${bend} ${point} ${at - 12}` }));
  svg.append(makeSvg("path", { class: "arrow", d: `M${point} ${at - 7}l-4.5 -8h9z` }));
  svg.append(makeSvg("circle", { class: "stood", cx: stood, cy: at, r: 5.5 }));
  // The common point lies on the branch on which it was written.
  const home = lanes.findIndex((one) => !one.isStray && rollback.seqno > one.start && rollback.seqno <= one.end);
  svg.append(makeSvg("circle", { class: "point", cx: point, cy: lane.isStray && home >= 0 ? y(home) : at, r: 5.5 }));
  const isLate = stood > width - 200;
  svg.append(makeText(isLate ? stood - 10 : stood + 10, at + 20, `${rollback.consumer.slice(0, 28)} at ${formatNumber(rollback.start_seqno)}`, "gone", isLate ? "end" : "start"));
  mark(rollback.seqno, `common ${formatNumber(rollback.seqno)}`);
}

function drawReaders(svg, readers, lanes, x, y, left, width) {
  const groups = new Map();
  for (const reader of readers) {
    const at = Math.round(x(reader.seqno));
    groups.set(at, [...(groups.get(at) ?? []), reader]);
  }
  for (const [at, group] of groups) {
    const number = Math.max(0, lanes.findLastIndex((lane) => !lane.isStray && group[0].seqno > lane.start));
    svg.append(makeSvg("path", { class: "reader", d: `M${at} ${y(number) - 7}l-5 -9h10z` }));
    const text = group.length > 1 ? `${group.length} streams` : group[0].label.slice(0, 24);
    const anchor = at > width - 140 ? "end" : at < left + 60 ? "start" : "middle";
    svg.append(makeText(at, y(number) - 20, text, "", anchor));
  }
}

function listLanes(log, high) {
  const lanes = log.map(([vbuuid, start], number) => ({ vbuuid, start, end: number ? Math.max(log[number - 1][1], start) : Math.max(high, start) }));
  return lanes.reverse().slice(-MOST_LANES);
}

function findDomain(lanes, high, readers, rollback) {
  const starts = lanes.slice(1).map((lane) => lane.start);
  const points = [high, ...starts, ...readers.map((reader) => reader.seqno)];
  if (rollback) points.push(rollback.seqno, rollback.start_seqno);
  const low = Math.min(...points), top = Math.max(...points, 1);
  return [Math.max(0, low - Math.max(1, (top - low) * 0.35)), top];
}

function describe(log, high, rollback) {
  const branches = `${log.length} ${log.length === 1 ? "branch" : "branches"} up to seqno ${high}`;
  return rollback ? `${branches}; ${tellRollback(rollback)}` : branches;
}

/** Return a rollback in words. */
export function tellRollback(rollback) {
  const { consumer, vbucket, start_seqno: start, seqno } = rollback;
  const known = rollback.failover_log.some(([vbuuid]) => vbuuid === rollback.vbuuid);
  const lost = start - seqno;
  const where = `${consumer} had vbucket ${vbucket} up to seqno ${formatNumber(start)}`;
  if (!known) return `${where}, on a branch that this node does not know. It has to begin at ${formatNumber(seqno)}.`;
  if (rollback.purge_seqno > start) return `${where}. Deletions up to ${formatNumber(rollback.purge_seqno)} were purged since. It has to begin at ${formatNumber(seqno)}.`;
  return `${where}. Both histories agree up to ${formatNumber(seqno)}: ${formatNumber(lost)} ${lost === 1 ? "change is" : "changes are"} void.`;
}

function makeText(x, y, text, style, anchor = "start") {
  return makeSvg("text", { x, y, class: style, "text-anchor": anchor }, text);
}

// Rollbacks as marks on a line of time, and as a list below it.
import { formatNumber, formatSeconds, formatTime, make, makeSvg, setText } from "./dom.js";

const WIDTH = 800, HEIGHT = 34;
const SHORTEST = 600; // seconds

/** Return vbuckets as ranges: 0-3, 7. */
export function formatRanges(numbers) {
  const found = [];
  for (const number of [...numbers].sort((one, other) => one - other)) {
    const last = found.at(-1);
    if (last && number === last[1] + 1) last[1] = number;
    else found.push([number, number]);
  }
  return found.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(", ");
}

export class RollbackTimeline {
  constructor() {
    this.note = make("p", { class: "muted" });
    this.line = makeSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", class: "timeline" });
    this.under = make("p", { class: "under muted small" }, make("span"), make("span", {}, "now"));
    this.list = make("ol", { class: "events" });
    this.empty = make("p", { class: "empty" }, "No rollback is in the changelog. After a failover, a rollback appears here with its vbuckets.");
    this.drawn = null;
    this.element = make("div", {}, this.line, this.under, this.list, this.empty);
  }

  /** Show the rollbacks of a source; the line ends at its newest point. */
  update({ rollbacks, points }) {
    const now = points.at(-1)?.[0] ?? Date.now() / 1000;
    const oldest = Math.min(points[0]?.[0] ?? now, ...rollbacks.map((one) => one.at));
    const span = Math.max(SHORTEST, now - oldest);
    for (const part of [this.line, this.under, this.list]) part.toggleAttribute("hidden", !rollbacks.length);
    this.empty.hidden = rollbacks.length > 0;
    setText(this.note, rollbacks.length ? `${formatNumber(rollbacks.length)} since the run began, or before it` : "");
    setText(this.under.firstChild, `${formatSeconds(span)} ago`);
    const marks = rollbacks.map((one) => (WIDTH - 6 - ((now - one.at) / span) * (WIDTH - 12)).toFixed(0));
    const drawn = marks.join(" ");
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.line.setAttribute("aria-label", `Rollbacks of the last ${formatSeconds(span)}: ${rollbacks.map((one) => formatTime(one.at)).join(", ")}`);
    this.line.replaceChildren(makeSvg("path", { class: "axis", d: `M0 ${HEIGHT / 2}H${WIDTH}` }), ...marks.map((x) => makeSvg("path", { class: "mark", d: `M${x} 5V${HEIGHT - 5}` })));
    this.list.replaceChildren(...rollbacks.map((one) => make("li", {}, make("span", { class: "muted" }, formatTime(one.at)), ` ${one.vbuckets.length === 1 ? "vbucket" : "vbuckets"} ${formatRanges(one.vbuckets)}`)));
  }
}
